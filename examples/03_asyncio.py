"""asyncio: one loop serves several peers, told of each write by a notification.

    python examples/03_asyncio.py

Workers write blocks into the server's memory, each into its own part, and say so with the write
itself (`notify=`); an atomic counter tells all of them how much is done. Nothing polls.
"""

import asyncio
import multiprocessing

import rdmatx

WORKERS, BLOCKS, BLOCK_BYTES = 3, 20, 4096
COUNTER = WORKERS * BLOCK_BYTES  # where the counter lies, behind the workers' parts


async def work(address: str) -> None:
    """Is told its number and the key, then writes and counts."""
    with (
        rdmatx.Context(timeout=30.0) as context,
        await context.connect_async(address, retry=True) as server,
    ):
        hello = bytearray(100)
        number, *key_bytes = hello[: await server.irecv(hello)]
        key = rdmatx.RemoteKey.from_bytes(bytes(key_bytes))
        for block in range(BLOCKS):
            data = bytes([block + 1]) * BLOCK_BYTES
            await server.iwrite(data, key, offset=number * BLOCK_BYTES, notify=block)
            await server.ifetch_add(key, COUNTER, 1)
        await server.isend(b"done")


async def serve_one(worker: rdmatx.Connection, number: int, key: rdmatx.RemoteKey) -> int:
    """Counts the blocks of one worker until it has said that it is done."""
    await worker.isend(bytes([number]) + bytes(key))
    done = worker.irecv(bytearray(4))
    blocks = 0
    async for block in worker.notifications():
        assert block == blocks, "notifications keep their order"
        blocks += 1
        if blocks == BLOCKS:
            break
    await done
    return blocks


async def serve() -> None:
    """Starts the workers, and serves them all in this one thread."""
    memory = rdmatx.empty(COUNTER + 8)
    with (
        rdmatx.Context(timeout=30.0) as context,
        context.listen("127.0.0.1:0") as listener,
        context.register(memory, access="wa") as region,
    ):
        spawn = multiprocessing.get_context("spawn")
        workers = [spawn.Process(target=start, args=(listener.address,)) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        peers = [await listener.accept_async() for _ in workers]
        counts = await asyncio.gather(
            *(serve_one(peer, number, region.key()) for number, peer in enumerate(peers))
        )
        total = int.from_bytes(bytes(memoryview(memory)[COUNTER:]), "little")
        for peer in peers:
            peer.close()
        for worker in workers:
            worker.join(30)
        print(f"{sum(counts)} blocks came, and {total} were counted")


def start(address: str) -> None:
    asyncio.run(work(address))


if __name__ == "__main__":
    asyncio.run(serve())

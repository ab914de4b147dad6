"""One-sided: write into another process's memory and read from it, while that process sleeps.

    python examples/02_one_sided.py

The owner of the memory registers it and hands out a key; whoever holds the key reads and writes
without any call on the owner's side.
"""

import multiprocessing
from multiprocessing.connection import Connection as Pipe

import rdmatx


def own_memory(pipe: Pipe) -> None:
    """Offers 1 MiB to one peer, sleeps meanwhile, and then looks what has become of it."""
    memory = rdmatx.empty(1 << 20)
    view = memoryview(memory)
    view[:] = bytes(len(view))
    with (
        rdmatx.Context() as context,
        context.listen("127.0.0.1:0") as listener,
        # "rw": the peer may read and write here. Without it, nobody can.
        context.register(memory, access="rw") as region,
    ):
        pipe.send((listener.address, bytes(region.key())))
        with listener.accept(timeout=30.0):
            pipe.recv()  # sleeps until the peer has done its work
            print(f"the owner finds: {bytes(view[4096:4105]).decode()}")


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    owner = spawn.Process(target=own_memory, args=(theirs,))
    owner.start()
    address, key_bytes = ours.recv()
    key = rdmatx.RemoteKey.from_bytes(key_bytes)

    with rdmatx.Context() as context, context.connect(address, timeout=30.0) as peer:
        peer.write(b"one-sided", key, offset=4096, timeout=30.0)
        check = bytearray(9)
        peer.read(check, key, offset=4096, timeout=30.0)
        print(f"read back: {check.decode()}")
        ours.send("done")

    owner.join(30)
    if owner.exitcode != 0:
        raise SystemExit(f"the owner ended with {owner.exitcode}")


if __name__ == "__main__":
    main()

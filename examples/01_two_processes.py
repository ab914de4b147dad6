"""Two processes, one connection: a message there and one back.

    python examples/01_two_processes.py

It runs on any Linux: over an RDMA device where there is an active one, else over rdmatx's
software HCA.
"""

import multiprocessing
from multiprocessing.connection import Connection as Pipe

import rdmatx


def serve(pipe: Pipe) -> None:
    """Waits for one peer, and answers its message with the same in capitals."""
    with rdmatx.Context() as context, context.listen("127.0.0.1:0") as listener:
        # Port 0 takes a free one; the other side has to hear which. Here a pipe tells it, in real
        # life the launcher does.
        pipe.send(listener.address)
        with listener.accept(timeout=30.0) as peer:
            message = bytearray(64)
            count = peer.recv(message, timeout=30.0)
            peer.send(bytes(message[:count]).upper(), timeout=30.0)


def main() -> None:
    # A process that is spawned starts afresh. A forked one may not use its parent's connections.
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    server = spawn.Process(target=serve, args=(theirs,))
    server.start()

    with rdmatx.Context() as context, context.connect(ours.recv(), timeout=30.0) as peer:
        peer.send(b"hello over rdma", timeout=30.0)
        answer = bytearray(64)
        count = peer.recv(answer, timeout=30.0)
        print(f"{context.device} ({context.provider}) answered: {bytes(answer[:count]).decode()}")

    server.join(30)
    if server.exitcode != 0:
        raise SystemExit(f"the server ended with {server.exitcode}")


if __name__ == "__main__":
    main()

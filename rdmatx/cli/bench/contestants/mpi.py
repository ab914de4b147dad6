"""Open MPI, called through mpi4py: its point-to-point messages over shared memory."""

from __future__ import annotations

from collections import deque
from importlib import import_module
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import TARGET, Contestant, latency_result, now
from rdmatx.cli.bench.memory import Block
from rdmatx.cli.errors import CommandError

# Imported by name, so that types are checked alike where mpi4py is installed and where not.
mpi4py: Any = import_module("mpi4py")
# Initialising waits for the other process, so it is done where both do it at once.
mpi4py.rc.initialize = False
mpi4py.rc.finalize = True
MPI: Any = import_module("mpi4py.MPI")

# The tag of "ready" and "done", which stand outside the messages that are measured.
_FLAG_TAG = 1
# Counts of MPI 3 are C integers.
_MOST_BYTES = (1 << 31) - 1


class OpenMpi(Contestant):
    """Sends and receives; this process is one of two that ``mpirun`` started."""

    def __init__(self, rank: int, case: Case) -> None:
        super().__init__(rank, case)
        self._world: Any = None
        self._message: Any = None
        self._echoed: Any = None

    def join(self, offer: dict[str, Any]) -> dict[str, Any]:
        # One thread calls, so the library need not lock: the fastest that it can be asked for.
        MPI.Init_thread(MPI.THREAD_SINGLE)
        self._world = MPI.COMM_WORLD
        if (self._world.Get_size(), self._world.Get_rank()) != (2, self.rank):
            raise CommandError(
                "mpi4py does not belong to the MPI of mpirun (each process finds itself alone): "
                "reinstall it for this one: pip install --force-reinstall --no-binary mpi4py mpi4py"
            )
        return {"device": "shared memory", "provider": MPI.Get_library_version().split(",")[0]}

    def arrange(
        self, case: Case, block: Block, sink: Block, offer: dict[str, Any]
    ) -> dict[str, Any]:
        super().arrange(case, block, sink, offer)
        if case.bytes > _MOST_BYTES:
            raise CommandError(f"a message of Open MPI has {_MOST_BYTES} bytes at most")
        self._message = [block.view, case.bytes, MPI.BYTE]
        self._echoed = [sink.view, sink.nbytes, MPI.BYTE]
        return {}

    def run(self, iterations: int) -> dict[str, Any]:
        return self._echo(iterations) if self.case.mode == "lat" else self._stream(iterations)

    def _stream(self, iterations: int) -> dict[str, Any]:
        world, message = self._world, self._message
        other, flag = 1 - self.rank, bytearray(1)
        start = world.Irecv if self.rank == TARGET else world.Isend
        pending: deque[Any] = deque()
        first = min(self.case.window, iterations)
        if self.rank == TARGET:
            pending.extend(start(message, other) for _ in range(first))
            world.Send(flag, other, _FLAG_TAG)
        else:
            world.Recv(flag, other, _FLAG_TAG)
        begin = now()
        if self.rank != TARGET:
            pending.extend(start(message, other) for _ in range(first))
        for _ in range(iterations - first):
            pending.popleft().Wait()
            pending.append(start(message, other))
        while pending:
            pending.popleft().Wait()
        if self.rank == TARGET:
            world.Send(flag, other, _FLAG_TAG)
            self._part()
            return {}
        world.Recv(flag, other, _FLAG_TAG)
        seconds = now() - begin
        self._part()
        return {"seconds": seconds}

    def _part(self) -> None:
        """Ends a round. MPI moves only while it is called: the target calls it until all is over."""
        if self.rank == TARGET:
            self._world.Recv(bytearray(1), 1 - self.rank, _FLAG_TAG)
        else:
            self._world.Send(bytearray(1), 1 - self.rank, _FLAG_TAG)

    def _echo(self, iterations: int) -> dict[str, Any]:
        send, receive, message = self._world.Send, self._world.Recv, self._message
        other = 1 - self.rank
        if self.rank == TARGET:
            for _ in range(iterations):
                receive(message, other)
                send(message, other)
            self._part()
            return {}
        echoed = self._echoed
        samples = []
        begin = last = now()
        for _ in range(iterations):
            send(message, other)
            receive(echoed, other)
            moment = now()
            samples.append(moment - last)
            last = moment
        self._part()
        return latency_result(samples, last - begin, scale=0.5)

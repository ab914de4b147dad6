"""Runs a function of a test module as N ranks, a process each.

    def exchange(rank: Rank, provider: str) -> int:     # at module level: the child imports it by name
        ...
    assert launch(exchange, "soft", ranks=2) == [1, 1]

A rank is a fresh interpreter, as users' ranks are, not a fork of pytest. What it prints appears under
pytest's captured output with its rank before each line. A rank that raises, hangs, dies or leaves
something open fails the test with the rank's own traceback; all of them are ended by their process ids,
and on a time-out each prints the stacks of its threads first (also by hand: `kill -USR1 PID`).

For tests that end a rank on purpose, use the class:

    with Ranks(transfer, provider, ranks=2) as ranks:
        assert ranks.hear(0) == "started"               # what rank 0 told with rank.tell("started")
        ranks.kill(1)
        assert ranks.result(0) == "PeerLostError"
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any

ROOT = (
    Path(__file__).absolute().parent.parent
)  # not resolved: a sanitized tree links to this folder
# On a machine with one slow CPU (the lab) every wait of the harness is this many times longer.
TIME_SCALE = float(os.environ.get("RDMATX_TEST_TIME_SCALE", "1"))
_PR_SET_PDEATHSIG = 1
_live: set[Ranks] = set()


class RankFailure(AssertionError):
    """A rank raised, died or took too long; the message has its traceback or stacks."""


class Rank:
    """What a rank's function gets first: who it is, and channels to the other ranks and to the test."""

    def __init__(self, index: int, test: Connection, peers: dict[int, Connection]) -> None:
        self.index = index
        self.world = len(peers) + 1
        self._test = test
        self._peers = peers

    def send(self, to: int, message: Any) -> None:
        """Hands any picklable object to another rank; does not wait for it."""
        self._peers[to].send(message)

    def receive(self, source: int, *, timeout: float = 30.0) -> Any:
        """The next object from that rank; TimeoutError after `timeout` seconds, EOFError where it has
        died."""
        return _receive(self._peers[source], timeout, f"rank {source}")

    def exchange(self, message: Any, *, timeout: float = 30.0) -> Any:
        """For two ranks: gives the other one `message` and returns what it gave."""
        other = 1 - self.index
        self.send(other, message)
        return self.receive(other, timeout=timeout)

    def barrier(self, *, timeout: float = 30.0) -> None:
        """Returns once every rank has called it."""
        for peer in self._peers:
            self.send(peer, "barrier")
        for peer in self._peers:
            message = self.receive(peer, timeout=timeout)
            if message != "barrier":
                raise AssertionError(f"rank {peer} sent {message!r} where a barrier was due")

    def tell(self, message: Any) -> None:
        """Hands an object to the test, which takes it with `Ranks.hear`."""
        self._test.send(("told", message))

    def listen(self, *, timeout: float = 30.0) -> Any:
        """The next object the test gave with `Ranks.tell`."""
        return _receive(self._test, timeout, "the test")


class Ranks:
    """The processes of one run. A context manager: leaving it ends every process that still runs."""

    def __init__(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        ranks: int = 2,
        timeout: float = 60.0,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._deadline = time.monotonic() + timeout * TIME_SCALE
        self._timeout = timeout * TIME_SCALE
        self._told: list[list[Any]] = [[] for _ in range(ranks)]
        self._results: dict[int, Any] = {}
        self._killed: set[int] = set()
        self._reported = False
        self._pipes: list[Connection] = []
        self._outputs: list[Any] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        mesh: list[dict[int, Connection]] = [{} for _ in range(ranks)]
        for low in range(ranks):
            for high in range(low + 1, ranks):
                mesh[low][high], mesh[high][low] = Pipe()
        _live.add(self)
        job = (function.__module__, function.__qualname__, arguments)
        for index in range(ranks):
            self._start(index, mesh[index], job, environment or {})
        for peers in mesh:
            for connection in peers.values():
                connection.close()

    def _start(
        self, index: int, peers: dict[int, Connection], job: Any, extra: dict[str, str]
    ) -> None:
        ours, theirs = Pipe()
        # A file, not a pipe: a rank that prints much must not wait for the test to read.
        output = tempfile.TemporaryFile()  # noqa: SIM115
        fds = [theirs.fileno(), *(connection.fileno() for connection in peers.values())]
        spec = ",".join(f"{peer}:{connection.fileno()}" for peer, connection in peers.items())
        self._processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "tests.launch", str(index), str(fds[0]), spec],
                cwd=ROOT,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **extra},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
            )
        )
        theirs.close()
        ours.send(job)
        self._pipes.append(ours)
        self._outputs.append(output)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def pid(self, index: int) -> int:
        return self._processes[index].pid

    def kill(self, index: int, number: int = signal.SIGKILL) -> None:
        """Sends that rank a signal, kill -9 by default, and waits until it is gone where it must die of
        it."""
        self._killed.add(index)
        self._processes[index].send_signal(number)
        if number == signal.SIGKILL:
            self._processes[index].wait()

    def tell(self, index: int, message: Any) -> None:
        """Hands an object to that rank, which takes it with `Rank.listen`."""
        self._pipes[index].send(message)

    def hear(self, index: int, *, timeout: float | None = None) -> Any:
        """The next object that rank told; fails the test where it raises or ends first."""
        until = self._until(timeout)
        while not self._told[index]:
            if index in self._results:
                self._fail(f"rank {index} ended before it told anything more")
            self._advance(index, until, "told nothing")
        return self._told[index].pop(0)

    def result(self, index: int, *, timeout: float | None = None) -> Any:
        """What that rank's function returned, once its process has ended well."""
        until = self._until(timeout)
        while index not in self._results:
            self._advance(index, until, "did not finish")
        try:
            status = self._processes[index].wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._fail(f"rank {index} returned but its process did not end")
        if status != 0:
            self._fail(f"rank {index} returned but its process ended with {_status(status)}")
        return self._results[index]

    def results(self) -> list[Any]:
        """What every rank returned; None for those the test killed."""
        return [
            None if index in self._killed else self.result(index)
            for index in range(len(self._processes))
        ]

    def stacks(self) -> str:
        """Asks every rank that runs for the stacks of its threads; all output so far, rank by rank."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGUSR1)
        time.sleep(0.3)
        return self._output()

    def _until(self, timeout: float | None) -> float:
        if timeout is None:
            return self._deadline
        return min(self._deadline, time.monotonic() + timeout * TIME_SCALE)

    def _advance(self, index: int, until: float, lack: str) -> None:
        """Takes the next message of one rank, and fails at the first sign of trouble in any."""
        pipe = self._pipes[index]
        while not pipe.poll(0.05):
            if time.monotonic() > until:
                self._fail(f"rank {index} {lack} within {self._timeout:g} s", stacks=True)
            for other, other_pipe in enumerate(self._pipes):
                # A rank that has failed often leaves the others waiting: its error is the one to show.
                if other != index and other not in self._killed and other not in self._results:
                    while not other_pipe.closed and other_pipe.poll(0):
                        self._take(other)
                        if other in self._results:
                            break
        self._take(index)

    def _take(self, index: int) -> None:
        try:
            kind, value = self._pipes[index].recv()
        except (EOFError, ConnectionError):
            status = self._processes[index].wait()
            self._fail(f"rank {index} ended without a result: {_status(status)}")
        if kind == "told":
            self._told[index].append(value)
        elif kind == "result":
            self._results[index] = value
        else:
            self._fail(self._errors(index, value))

    def _errors(self, index: int, error: tuple[float, str]) -> str:
        """The errors of all ranks, earliest first: one that fails often makes its peers fail after it."""
        errors = {index: error}
        until = time.monotonic() + 0.3 * TIME_SCALE
        for other, pipe in enumerate(self._pipes):
            with contextlib.suppress(EOFError, ConnectionError):
                while other not in errors and pipe.poll(max(0.0, until - time.monotonic())):
                    kind, value = pipe.recv()
                    if kind == "error":
                        errors[other] = value
        ordered = sorted(errors.items(), key=lambda entry: entry[1][0])
        count = len(self._processes)
        return "\n".join(f"rank {rank} of {count} failed\n{text}" for rank, (_, text) in ordered)

    def _fail(self, reason: str, *, stacks: bool = False) -> Any:
        text = self.stacks() if stacks else ""
        self._end()
        raise RankFailure(f"{reason}\n{text}" if text else reason) from None

    def _end(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for pipe in self._pipes:
            pipe.close()
        if not self._reported:
            self._reported = True
            print(self._output(), end="")
            for output in self._outputs:
                output.close()
        _live.discard(self)

    def _output(self) -> str:
        lines = []
        for index, output in enumerate(self._outputs):
            text = os.pread(output.fileno(), 1 << 20, 0).decode(errors="replace")
            lines += [f"[rank {index}] {line}\n" for line in text.splitlines()]
        return "".join(lines)


def launch(
    function: Callable[..., Any],
    *arguments: Any,
    ranks: int = 2,
    timeout: float = 60.0,
    environment: dict[str, str] | None = None,
) -> list[Any]:
    """Runs `function(rank, *arguments)` on every rank and returns what each returned, in rank order."""
    with Ranks(
        function, *arguments, ranks=ranks, timeout=timeout, environment=environment
    ) as running:
        return running.results()


def stacks_of_all_ranks() -> str:
    """The stacks of every rank of every run in progress; the time-out of a test prints it."""
    return "".join(ranks.stacks() for ranks in list(_live))


def _receive(connection: Connection, timeout: float, source: str) -> Any:
    if not connection.poll(timeout * TIME_SCALE):
        raise TimeoutError(f"nothing from {source} within {timeout * TIME_SCALE:g} s")
    return connection.recv()


def _status(status: int) -> str:
    if status < 0:
        return f"signal {signal.Signals(-status).name}"
    return f"exit status {status}"


def _run_rank(index: int, test: Connection, peers: dict[int, Connection]) -> None:
    """In the child: the function, then a look for what it left open, then the answer."""
    module, name, arguments = test.recv()
    try:
        function: Any = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        from tests import leaks

        before = leaks.snapshot()
        value = function(Rank(index, test, peers), *arguments)
        leaks.check(before)
        answer = ("result", value)
    except BaseException:
        answer = ("error", (time.monotonic(), traceback.format_exc()))
    # Where the test has ended already nobody reads this.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        test.send(answer)


def _child_main(arguments: list[str]) -> None:
    # A test run that is killed takes its ranks along.
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    index, control, spec = arguments
    peers = {
        int(peer): Connection(int(fd))
        for peer, fd in (pair.split(":") for pair in spec.split(",") if pair)
    }
    _run_rank(int(index), Connection(int(control)), peers)


if __name__ == "__main__":
    # By its importable name, so that Rank is the same class the test module sees.
    from tests.launch import _child_main as _main

    _main(sys.argv[1:])

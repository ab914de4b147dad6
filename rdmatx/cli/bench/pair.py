"""A pair of worker processes, seen from the command's process."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from rdmatx.cli.errors import CommandError

# An order that takes longer than this is a hang: then the workers are killed.
ORDER_SECONDS = 300.0
# Launched workers have to call within this time.
CALL_SECONDS = 60.0
# What a process may take for its end before it is made to end.
END_SECONDS = 5.0


class _Worker:
    """One worker, over the socket that leads to it. Owns the socket; not the process."""

    def __init__(self, rank: int, control: socket.socket, process: subprocess.Popen[bytes]) -> None:
        self.rank = rank
        self._process = process
        self._socket = control
        self._socket.settimeout(ORDER_SECONDS)
        self._answers = control.makefile("r")

    def order(self, do: str, **arguments: Any) -> None:
        """Tells the worker what to do; ``answer`` has to be asked for before the next order."""
        try:
            self._socket.sendall((json.dumps({"do": do, "with": arguments}) + "\n").encode())
        except OSError as error:
            raise CommandError(self._epitaph()) from error

    def answer(self) -> Any:
        """Waits for what came of the order."""
        try:
            line = self._answers.readline()
        except TimeoutError as error:
            raise CommandError(
                f"worker {self.rank} of the benchmark did not answer within {ORDER_SECONDS:.0f} s"
            ) from error
        except OSError:
            line = ""
        if not line:
            raise CommandError(self._epitaph())
        answer = json.loads(line)
        if "error" in answer:
            raise CommandError(answer["error"])
        return answer["value"]

    def _epitaph(self) -> str:
        try:
            status: object = self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            status = "unknown"
        return f"worker {self.rank} of the benchmark ended before its work (exit status {status})"

    def hang_up(self) -> None:
        """Closes the socket: the worker ends by itself."""
        self._answers.close()
        self._socket.close()


class WorkerPair:
    """Both workers: rank 0 the initiator, rank 1 the target. A context manager that ends them.

    ``launcher`` is the command that starts both (mpirun with its options); without one they are
    started here. ``environment`` is added to theirs.
    """

    def __init__(
        self, launcher: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self._launched = bool(launcher)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: list[_Worker] = []
        surroundings = {**os.environ, **(environment or {})}
        try:
            if launcher:
                self._launch(launcher, surroundings)
            else:
                self._start(surroundings)
        except BaseException:
            self._end(at_once=True)
            raise

    def _start(self, environment: Mapping[str, str]) -> None:
        for rank in range(2):
            ours, theirs = socket.socketpair()
            with theirs:
                command = [*_WORKER, str(rank), str(theirs.fileno())]
                process = _spawn(command, environment, theirs.fileno())
            self._processes.append(process)
            self._workers.append(_Worker(rank, ours, process))

    def _launch(self, launcher: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts both by the launcher, which passes no sockets on: they call at a path."""
        with tempfile.TemporaryDirectory(prefix="rdmatx-bench-") as folder:
            paths = [os.path.join(folder, f"worker{rank}") for rank in range(2)]
            command = [sys.executable, "-m", "rdmatx.cli.bench.leash", *launcher]
            command += ["-n", "1", *_WORKER, "0", paths[0], ":"]
            command += ["-n", "1", *_WORKER, "1", paths[1]]
            with _listen(paths[0]) as first, _listen(paths[1]) as second:
                process = _spawn(command, environment)
                self._processes.append(process)
                deadline = time.monotonic() + CALL_SECONDS
                for rank, listener in enumerate((first, second)):
                    control = _await_call(listener, process, launcher[0], deadline)
                    self._workers.append(_Worker(rank, control, process))

    def ask(self, rank: int, do: str, **arguments: Any) -> Any:
        """Lets one worker do something and gives its answer."""
        self._workers[rank].order(do, **arguments)
        return self._workers[rank].answer()

    def ask_both(self, do: str, **arguments: Any) -> list[Any]:
        """Lets both do the same at once and gives both answers, rank 0's first."""
        for worker in self._workers:
            worker.order(do, **arguments)
        answers: list[Any] = []
        errors: list[CommandError] = []
        for worker in self._workers:
            try:
                answers.append(worker.answer())
            except CommandError as error:
                errors.append(error)
        if errors:
            raise errors[0]
        return answers

    def _end(self, *, at_once: bool) -> None:
        # A launcher is never killed first: it has processes and shared memory to clear away.
        if at_once and not self._launched:
            for process in self._processes:
                process.kill()
        for worker in self._workers:
            worker.hang_up()
        for process in self._processes:
            for insist in (process.terminate, process.kill):
                try:
                    process.wait(END_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    insist()
            process.wait()

    def __enter__(self) -> WorkerPair:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end(at_once=error is not None)


_WORKER = (sys.executable, "-m", "rdmatx.cli.bench.worker")


def _spawn(
    command: Sequence[str], environment: Mapping[str, str], fd: int | None = None
) -> subprocess.Popen[bytes]:
    # Not forked: memory from before a fork loses what huge pages give to copies between
    # processes. Its stdout is not for results, so it goes where errors go.
    return subprocess.Popen(
        command,
        pass_fds=[] if fd is None else [fd],
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr.fileno(),
        env=environment,
    )


def _listen(path: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(1)
    listener.settimeout(0.1)
    return listener


def _await_call(
    listener: socket.socket, process: subprocess.Popen[bytes], launcher: str, deadline: float
) -> socket.socket:
    while time.monotonic() < deadline:
        try:
            return listener.accept()[0]
        except TimeoutError:
            if process.poll() is not None:
                raise CommandError(
                    f"{launcher} ended before the benchmark's processes called (exit status "
                    f"{process.returncode}): what it said is above"
                ) from None
    raise CommandError(
        f"the benchmark's processes, which {launcher} should start, did not call within "
        f"{CALL_SECONDS:.0f} s"
    )

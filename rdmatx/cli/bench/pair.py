"""The pair of worker processes, seen from the command's process."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from types import TracebackType
from typing import Any

from rdmatx.cli.errors import CommandError

# An order that takes longer than this is a hang: then the workers are killed.
ORDER_SECONDS = 300.0


class _WorkerProcess:
    """One worker. Owns the process and the socket to it."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        ours, theirs = socket.socketpair()
        with theirs:
            # Not forked: memory from before a fork loses what huge pages give to copies between
            # processes. Its stdout is not for results, so it goes where errors go.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rdmatx.cli.bench.worker", str(rank), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr.fileno(),
            )
        self._socket = ours
        self._socket.settimeout(ORDER_SECONDS)
        self._answers = ours.makefile("r")

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
            status: object = self._process.wait(5)
        except subprocess.TimeoutExpired:
            status = "unknown"
        return f"worker {self.rank} of the benchmark ended before its work (exit status {status})"

    def hang_up(self) -> None:
        """Closes the socket: the worker ends by itself."""
        self._answers.close()
        self._socket.close()

    def end(self) -> None:
        """Waits a moment for the worker's end, and kills it after that."""
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """Ends the worker at once."""
        self._process.kill()


class WorkerPair:
    """Both workers: rank 0 the initiator, rank 1 the target. A context manager that ends them."""

    def __init__(self) -> None:
        self._workers = [_WorkerProcess(0), _WorkerProcess(1)]

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

    def __enter__(self) -> WorkerPair:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for worker in self._workers:
            if error is not None:
                worker.kill()
            worker.hang_up()
        for worker in self._workers:
            worker.end()

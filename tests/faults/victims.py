"""Processes that things happen to: killed, stopped, ended in many ways, over and over.

A victim is forked from one process, the nursery, that has everything imported and nothing opened, so that one
costs a few milliseconds where a fresh interpreter costs a second; for the library it is a process like any
other.

    with Nursery() as nursery, nursery.start(function, provider) as victim:     # function(Test, provider)
        assert victim.hear() == "ready"         # what it told with test.tell("ready")
        victim.signal(signal.SIGKILL)
        assert victim.status() == -signal.SIGKILL

A victim whose function raises fails the test with its traceback; where it returns, it ends as an interpreter
does, and what it left open by then is an error as well.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from tests import leaks
from tests.launch import ROOT, TIME_SCALE

_PR_SET_PDEATHSIG = 1
# Seconds for anything a victim is asked for that does not wait for a peer.
PATIENCE = 20.0 * TIME_SCALE


class Test:
    """What a victim's function gets first: the way to the test."""

    __test__ = False

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def tell(self, message: Any) -> None:
        """Hands an object to the test, which takes it with `Victim.hear`."""
        self._connection.send(("told", message))

    def listen(self) -> Any:
        """The next object that the test gave with `Victim.tell`; ends this process where the test is over."""
        try:
            return self._connection.recv()
        except (EOFError, ConnectionError):
            os._exit(1)


class Victim:
    """One process, from the test's side. Leaving the context kills it where it still runs."""

    def __init__(self, nursery: Nursery, pid: int, connection: Connection) -> None:
        self._nursery = nursery
        self._connection = connection
        self._status: int | None = None
        self.pid = pid

    def __enter__(self) -> Victim:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            self.signal(signal.SIGKILL)
            self.status()
        self._connection.close()

    def tell(self, message: Any) -> None:
        self._connection.send(message)

    def hear(self, timeout: float = PATIENCE) -> Any:
        """The next object it told, or what its function returned."""
        if not self._connection.poll(timeout):
            self.signal(signal.SIGUSR1)  # it prints the stacks of its threads
            time.sleep(0.3)
            raise AssertionError(f"the victim told nothing within {timeout:g} s")
        kind, message = self._connection.recv()
        if kind == "error":
            raise AssertionError(f"the victim failed\n{message}")
        return message

    def ask(self, *message: Any, timeout: float = PATIENCE) -> Any:
        self.tell(message)
        return self.hear(timeout)

    def signal(self, number: int) -> None:
        assert self._status is None, "it has ended already"
        os.kill(self.pid, number)

    def status(self) -> int:
        """Waits until it has ended: its exit status, or minus the signal that ended it."""
        if self._status is None:
            self._status = self._nursery.reap(self.pid)
        return self._status


class Nursery:
    """The process that victims are forked from. Starts it, and ends it with the context."""

    def __init__(self) -> None:
        self._listener = Listener(family="AF_UNIX")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.victims", str(self._listener.address)],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
        )
        self._control = self._listener.accept()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait(PATIENCE)
        self._listener.close()

    def start(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        environment: dict[str, str] | None = None,
    ) -> Victim:
        """Forks a process that runs `function(Test, *arguments)`, a function of a module's."""
        job = (function.__module__, function.__qualname__, arguments, environment or {})
        self._control.send(("start", job))
        pid = self._answer()
        return Victim(self, pid, self._listener.accept())

    def reap(self, pid: int) -> int:
        self._control.send(("reap", pid))
        return self._answer()

    def _answer(self) -> int:
        assert self._control.poll(PATIENCE), "the nursery of the victims does not answer"
        return int(self._control.recv())


def _nurse(address: str) -> None:
    """In the nursery: forks and reaps as the test says, until it hangs up."""
    control = Client(address)
    while True:
        try:
            word, argument = control.recv()
        except (EOFError, ConnectionError):
            return
        if word == "start":
            importlib.import_module(argument[0])  # here, once for all victims
            pid = os.fork()
            if pid == 0:
                control.close()
                _live(Client(address), *argument)
                return
            control.send(pid)
        else:
            control.send(_reap(argument))


def _reap(pid: int) -> int:
    """Its status; a process that does not end by itself is killed, which the status tells."""
    until = time.monotonic() + PATIENCE / 2
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _live(
    connection: Connection,
    module: str,
    name: str,
    arguments: tuple[Any, ...],
    environment: dict[str, str],
) -> None:
    """In a victim."""
    _die_with_the_parent()
    os.environ.update(environment)
    try:
        function = getattr(importlib.import_module(module), name)
        before = leaks.snapshot()
        value = function(Test(connection), *arguments)
        gc.collect()
        leaks.check(before)
        connection.send(("result", value))
    except Exception:
        connection.send(("error", traceback.format_exc()))
        sys.exit(1)


def _die_with_the_parent() -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)


if __name__ == "__main__":
    _die_with_the_parent()
    # By its importable name, so that its classes are the same ones that the test module sees.
    importlib.import_module("rdmatx")
    importlib.import_module("tests.faults.victims")._nurse(sys.argv[1])

"""The caller's side of signals and terminal modes."""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import threading
import tty
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGWINCH)


class Signals:
    """Collects the caller's signals while in use, and makes ``fileno()`` readable for each.

    Only the main thread may take signals; in another thread this does nothing. A signal
    that is ignored stays so.
    """

    def __init__(self) -> None:
        self._seen: list[int] = []
        self._previous: dict[int, Any] = {}
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in FORWARDED:
                if signal.getsignal(number) != signal.SIG_IGN:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """The descriptor that becomes readable when a signal came."""
        return self._read

    def take(self) -> list[int]:
        """The signals since the last call, in order."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._read, 4096)
        seen, self._seen = self._seen, []
        return seen

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._seen.append(number)
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"!")


@contextlib.contextmanager
def raw_terminal(wanted: bool) -> Iterator[None]:
    """Hands every key of the caller's terminal on, also Ctrl-C, and restores it at the end."""
    if not wanted:
        yield
        return
    before = termios.tcgetattr(0)
    tty.setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def window_size() -> tuple[int, int]:
    """Rows and columns of the caller's terminal, 24 and 80 where there is none."""
    for number in (1, 2, 0):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(number)
            return size.lines, size.columns
    return 24, 80

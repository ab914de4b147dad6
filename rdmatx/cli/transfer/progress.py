"""The progress bar of a transfer, on stderr: drawn on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from rdmatx.cli.output import format_bytes, note, printable

if TYPE_CHECKING:
    import rich.progress


class Progress(Protocol):
    """What a transfer tells about itself. Used from one thread; also a context manager."""

    def start(self, name: str, total: int) -> None:
        """A file of ``total`` bytes begins."""

    def advance(self, count: int) -> None:
        """``count`` more bytes are through."""

    def __enter__(self) -> Progress: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...


class Silent:
    """Shows nothing (``--json``)."""

    def start(self, name: str, total: int) -> None:
        del name, total

    def advance(self, count: int) -> None:
        del count

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Lines(Silent):
    """One line as a file begins: for log files and pipes."""

    def start(self, name: str, total: int) -> None:
        note(f"{printable(name)}: {format_bytes(total)}")


class Bar(Silent):
    """A bar with bandwidth and time left, drawn by rich."""

    def __init__(self) -> None:
        import rich.console
        import rich.progress as parts

        self._task: rich.progress.TaskID | None = None
        self._bar = parts.Progress(
            parts.TextColumn("{task.description}", markup=False),
            parts.BarColumn(),
            parts.DownloadColumn(),
            parts.TransferSpeedColumn(),
            parts.TimeRemainingColumn(),
            console=rich.console.Console(stderr=True),
            transient=True,
        )

    def start(self, name: str, total: int) -> None:
        if self._task is not None:
            self._bar.remove_task(self._task)
        self._task = self._bar.add_task(printable(name), total=total)

    def advance(self, count: int) -> None:
        if self._task is not None:
            self._bar.advance(self._task, count)

    def __enter__(self) -> Progress:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def make_progress(*, silent: bool) -> Progress:
    """The progress that fits where stderr goes."""
    if silent:
        return Silent()
    return Bar() if sys.stderr.isatty() else Lines()

"""Runs the command line as users do, in processes of its own, for the tests of this folder."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.launch import TIME_SCALE

LIMIT_SECONDS = 50 * TIME_SCALE
MIB = 1 << 20
# Eight slots of 64 KiB: files of a few MiB wrap around the window many times.
SMALL_WINDOW = ("--window", "512K")


def command(*words: object, patch: str = "") -> list[str]:
    """`rdmatx WORDS…`; ``patch`` is Python that runs first, to make something go wrong on purpose."""
    script = f"import sys\n{patch}\nfrom rdmatx.cli.main import main\nsys.exit(main(sys.argv[1:]))"
    return [sys.executable, "-c", script, *map(str, words)]


def run(*words: object, patch: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        command(*words, patch=patch),
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
        **options,
    )


class Background:
    """A command that runs beside the test; killed at the end of the ``with`` if it still runs."""

    def __init__(self, *words: object, patch: str = "", **options: Any) -> None:
        self.process = subprocess.Popen(
            command(*words, patch=patch),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,
        )

    def line(self) -> str:
        """The next line of its stdout; fails with its stderr where it has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"it ended: {self.process.communicate(timeout=LIMIT_SECONDS)[1]}")
        return line

    def finish(self) -> tuple[int, str, str]:
        """Waits for its end: exit status, the rest of stdout, stderr."""
        output, errors = self.process.communicate(timeout=LIMIT_SECONDS)
        return self.process.returncode, output, errors

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
        self.process.wait()


class Receiving(Background):
    """`rdmatx recv`, listening; ``address`` is where."""

    def __init__(self, out: Path, provider: str, *words: object, **options: Any) -> None:
        super().__init__(
            *("recv", "--listen", "127.0.0.1:0", "--out", out, "--provider", provider),
            *("--json", *words),
            **options,
        )
        try:
            self.address = str(json.loads(self.line())["listening"])
        except BaseException:
            self.__exit__(None, None, None)
            raise


def make_file(path: Path, size: int) -> Path:
    """A file whose content differs from place to place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    block = hashlib.shake_128(path.name.encode()).digest(min(size, MIB) or 1)
    with path.open("wb") as file:
        for begin in range(0, size, MIB):
            file.write(begin.to_bytes(8, "little") + block[8:] if size > 8 else block)
        file.truncate(size)
    return path


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()

"""Runs a script in an interpreter of its own, to look at how it ends.

ended = run_script("import rdmatx; ctx = rdmatx.Context(provider='soft')")
ended.clean()          # status 0, nothing on stderr: no crash, no message, no exception nobody saw
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import dataclass

from tests.launch import ROOT, TIME_SCALE

# A script that must end by itself and does not is given this long to show its stacks and go.
_DUMP = (
    "import faulthandler, signal; faulthandler.enable(); faulthandler.register(signal.SIGUSR1)\n"
)


@dataclass(frozen=True)
class Ended:
    """How a script ended."""

    status: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        ending = (
            f"signal {signal.Signals(-self.status).name}"
            if self.status < 0
            else f"status {self.status}"
        )
        return f"{ending}\n--- stdout\n{self.stdout}--- stderr\n{self.stderr}"

    def clean(self, *, status: int = 0, stdout: str | None = None) -> Ended:
        """Asserts the exit status and that nothing was printed on stderr."""
        assert self.status == status, str(self)
        assert self.stderr == "", str(self)
        if stdout is not None:
            assert self.stdout == stdout, str(self)
        return self


def run_script(
    script: str, *arguments: str, timeout: float = 20.0, environment: dict[str, str] | None = None
) -> Ended:
    """Runs `script` and waits until it ends; where it does not, its stacks are in the AssertionError."""
    process = subprocess.Popen(
        [sys.executable, "-c", _DUMP + textwrap.dedent(script), *arguments],
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout * TIME_SCALE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)
        try:
            stdout, stderr = process.communicate(timeout=2)
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
        raise AssertionError(
            f"the interpreter did not end within {timeout * TIME_SCALE:g} s\n{stdout}{stderr}"
        ) from None
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    return Ended(process.returncode, stdout, stderr)


__all__ = ["Ended", "run_script"]

"""Starts the kernel, outlives the runner, and leaves nothing behind.

A small process of its own between the runner and the kernel. The runner holds the other
end of a pipe; when that closes, for whatever reason, also by SIGKILL, the keeper ends the
kernel with everything the kernel started and removes the run's folder. It runs as a plain
file with the standard library alone: ``python -I -S keeper.py JOB``.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def start_kernel(job: dict[str, Any]) -> int:
    """Forks and executes the kernel, which dies with this process; returns its pid."""
    pid = os.fork()
    if pid:
        return pid
    try:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(job["log"], 1)
        os.dup2(job["log"], 2)
        os.close(job["log"])
        os.close(job["lifeline"])
        os.execve(job["kernel"][0], job["kernel"], job["environment"])
    except OSError as error:
        os.write(2, f"{job['kernel'][0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def children(parent: int) -> list[int]:
    """The processes whose parent is ``parent``."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
            except OSError:
                continue
            # The name in parentheses may hold anything; state and parent come behind it.
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry))
    return found


def end_all() -> None:
    """Kills every descendant. As a subreaper this process inherits those that lose their parent.

    The kernel's own children go first: they are stopped processes that the kernel traces, and
    would run on by themselves without it.
    """
    while mine := children(os.getpid()):
        for pid in mine:
            for traced in children(pid):
                _kill(traced)
            _kill(pid)
        for pid in mine:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main() -> None:
    """Runs one job to its end."""
    job: dict[str, Any] = json.loads(sys.argv[1])
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        start_kernel(job)
        # The runner learns of the kernel's end by the channel, so only the kernel may hold it; and
        # a link whose host is gone must take no more packets.
        for descriptor in (job["channel"], job["log"], *job["links"]):
            os.close(descriptor)
        select.select([job["lifeline"]], [], [])
    finally:
        end_all()
        shutil.rmtree(job["folder"], ignore_errors=True)


if __name__ == "__main__":
    main()

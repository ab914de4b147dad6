"""Runs a command that ends when the process that started it ends, however that ends."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Lets the kernel send this process ``number`` when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


if __name__ == "__main__":
    # Not killed: mpirun ends its processes and removes its shared memory when it is asked to.
    die_with_parent(signal.SIGTERM)
    os.execvp(sys.argv[1], sys.argv[1:])

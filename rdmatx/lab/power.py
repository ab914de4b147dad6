"""Ends the kernel that one is in, for tests of a host that is gone."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

from rdmatx.errors import UnavailableError, UsageError

POWER_OFF = 0x4321FEDC  # LINUX_REBOOT_CMD_POWER_OFF of reboot(2)


def inside() -> bool:
    """Whether this is a host of the lab; asks the kernel, since the environment may say anything."""
    try:
        words = Path("/proc/cmdline").read_text().split()
    except OSError:
        return False
    return "rootfstype=hostfs" in words and any("/rdmatx-lab-" in word for word in words)


def power_off() -> None:
    """Powers this host of the lab off at once: no file is synced, no connection closed.

    Only inside the lab, where it needs root; elsewhere it raises ``UsageError`` or
    ``UnavailableError`` and does nothing.
    """
    if not inside():
        raise UsageError(
            "this is no host of the lab: powering off works inside `rdmatx lab run` only"
        )
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.reboot(ctypes.c_int(POWER_OFF)):
        raise UnavailableError(
            f"this host cannot be powered off: {os.strerror(ctypes.get_errno())}; it takes root "
            "inside: `rdmatx lab run --user 0`"
        )

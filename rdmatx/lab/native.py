"""The host's own RDMA devices, for those who have one."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rdmatx.errors import UnavailableError

SYSFS = Path("/sys/class/infiniband")


def native_devices() -> list[str]:
    """The names of the host's RDMA devices, sorted; empty without any."""
    try:
        return sorted(entry.name for entry in SYSFS.iterdir())
    except OSError:
        return []


def require_native() -> list[str]:
    """The host's devices; raises ``UnavailableError`` with a remedy where there are none."""
    devices = native_devices()
    if devices:
        return devices
    raise UnavailableError(
        "this host has no RDMA device (/sys/class/infiniband is empty or missing): leave "
        "--native out to run in the lab's kernel, or make one as root where the kernel has "
        "soft-RoCE: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev NETDEV`"
    )


def run_native(command: list[str], timeout: float | None, workdir: Path | None) -> int:
    """Runs ``command`` on the host; its exit status as a shell would give it, 124 on timeout."""
    require_native()
    try:
        process = subprocess.Popen(command, cwd=workdir)
    except FileNotFoundError as error:
        return _not_started(error, 127)
    except PermissionError as error:
        return _not_started(error, 126)
    try:
        status = process.wait(timeout)
    except subprocess.TimeoutExpired:
        status = 124
    except KeyboardInterrupt:
        # The terminal sent SIGINT to the command as well; its answer counts.
        status = process.wait()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    return 128 - status if status < 0 else status


def _not_started(error: OSError, status: int) -> int:
    os.write(2, f"rdmatx lab: {error.filename}: {error.strerror}\n".encode())
    return status

"""Memory made for transfers."""

from __future__ import annotations

from rdmatx._C import HostBuffer, trim_pools
from rdmatx.errors import UnavailableError, UsageError

__all__ = ["HostBuffer", "empty", "trim"]


def empty(nbytes: int, device: str = "cpu") -> HostBuffer:
    """Zeroed memory of `nbytes` bytes that peers on the same host map.

    A transfer into it takes one plain copy, whichever way other memory would go. It is seen
    without a copy as uint8 through `memoryview(t)`, `numpy.asarray(t)` and
    `torch.from_dlpack(t)`; `.view(dtype)` of those gives it another type. Each such view keeps
    the memory alive. Afterwards the memory is kept for the next buffer of about that size, which
    is then mapped by peers and registered already (and zeroed again); `trim()` gives it back.

    Args:
        nbytes: size in bytes; 0 is allowed. Pages are taken when they are first touched.
        device: "cpu"; memory of accelerators is not there yet.

    Raises:
        UsageError: `nbytes` is negative.
        UnavailableError: `device` is not "cpu".
        Error: the system has not that much memory.
    """
    if nbytes < 0:
        raise UsageError(f"the size of a buffer cannot be negative: {nbytes}")
    if device != "cpu":
        raise UnavailableError(
            f'rdmatx.empty(device="{device}"): this version has memory of the host only; '
            'use device="cpu"'
        )
    return HostBuffer(nbytes)


def trim() -> None:
    """Gives memory that no buffer uses any more back to the system.

    Up to a sixteenth of the machine's memory is kept for later calls of `empty()`, and 256 MiB for
    the dense copies of strided arrays.
    """
    trim_pools()

"""Memory made for transfers."""

from __future__ import annotations

from rdmatx._C import HostBuffer
from rdmatx.errors import UnavailableError, UsageError

__all__ = ["HostBuffer", "empty"]


def empty(nbytes: int, device: str = "cpu") -> HostBuffer:
    """Zeroed memory of `nbytes` bytes that peers on the same host map.

    A transfer into it takes one plain copy, whichever way other memory would go. It is seen
    without a copy as uint8 through `memoryview(t)`, `numpy.asarray(t)` and
    `torch.from_dlpack(t)`; `.view(dtype)` of those gives it another type. Each such view keeps
    the memory alive.

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

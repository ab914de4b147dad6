"""Memory made for transfers."""

from __future__ import annotations

import re
from typing import Literal, overload

from rdmatx._C import DeviceBuffer, HostBuffer, trim_pools
from rdmatx.errors import UsageError

__all__ = ["DeviceBuffer", "HostBuffer", "empty", "trim"]


@overload
def empty(nbytes: int, device: Literal["cpu"] = "cpu") -> HostBuffer: ...
@overload
def empty(nbytes: int, device: str) -> HostBuffer | DeviceBuffer: ...
def empty(nbytes: int, device: str = "cpu") -> HostBuffer | DeviceBuffer:
    """Zeroed memory of `nbytes` bytes: the host's, which peers on the same host map, or a GPU's.

    On the host, a transfer into it takes one plain copy, whichever way other memory would go. It
    is seen without a copy as uint8 through `memoryview(t)`, `numpy.asarray(t)` and
    `torch.from_dlpack(t)`; `.view(dtype)` of those gives it another type. Each such view keeps
    the memory alive. Afterwards the memory is kept for the next buffer of about that size, which
    is then mapped by peers and registered already (and zeroed again); `trim()` gives it back.

    Args:
        nbytes: size in bytes; 0 is allowed. Pages are taken when they are first touched.
        device: "cpu", or "cuda", "cuda:0", "cuda:1", ...: memory of that GPU, which is given back
            when nothing uses it any more and is seen through `__cuda_array_interface__`.

    Raises:
        UsageError: `nbytes` is negative, or there is no such kind of device.
        UnavailableError: there is no driver of a GPU, with the reason.
        CudaError: there is no such GPU, or it has not that much memory.
        Error: the system has not that much memory.
    """
    if nbytes < 0:
        raise UsageError(f"the size of a buffer cannot be negative: {nbytes}")
    if device != "cpu":
        gpu = re.fullmatch(r"cuda(?::(\d+))?", device)
        if gpu is None:
            raise UsageError(
                f'rdmatx.empty(device="{device}"): a device is "cpu" or a GPU: "cuda", "cuda:0", ...'
            )
        return DeviceBuffer(int(gpu[1] or 0), nbytes)
    return HostBuffer(nbytes)


def trim() -> None:
    """Gives memory that no buffer uses any more back to the system.

    Up to a sixteenth of the machine's memory is kept for later calls of `empty()`, and 256 MiB for
    the dense copies of strided arrays.
    """
    trim_pools()

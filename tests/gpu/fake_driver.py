"""The fake driver (tests/gpu/fake) from the side of the Python tests: memory, streams, kernels, failures."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.launch import ROOT

BUILD = Path(os.environ.get("RDMATX_BUILD_DIR", ROOT / "build" / "native"))
LIBRARY = BUILD / "fake_gpu" / "libcuda.so.1"
ANY_ORDER = None  # of __cuda_array_interface__: no stream has to be waited for

_loaded: dict[str, ctypes.CDLL] = {}


def use() -> None:
    """Has rdmatx load the fake driver in this process. Before its first use of a GPU."""
    os.environ["RDMATX_CUDA_LIBRARY"] = str(LIBRARY)
    context = ctypes.c_void_p()
    call("cuInit", ctypes.c_uint(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(0))
    call("cuCtxPushCurrent_v2", context)


def library() -> ctypes.CDLL:
    if "cuda" not in _loaded:
        _loaded["cuda"] = ctypes.CDLL(str(LIBRARY))
        _loaded["cuda"].fake_calls.restype = ctypes.c_int64
    return _loaded["cuda"]


def call(name: str, *arguments: Any) -> None:
    status = getattr(library(), name)(*arguments)
    assert status == 0, f"{name} said {status}"


def setting(name: str, value: int) -> None:
    library().fake_set(name.encode(), ctypes.c_int64(value))


def fail(name: str, number: int, result: int) -> None:
    """The `number`-th call of `name` from now fails; 0: every one. `result` 0 takes it back."""
    library().fake_fail(name.encode(), ctypes.c_int64(number), ctypes.c_int(result))


def calls(name: str) -> int:
    return int(library().fake_calls(name.encode()))


def faults() -> int:
    """How often a kernel or copy met memory that is not allocated."""
    return int(library().fake_faults())


@contextmanager
def delays(microseconds: int) -> Iterator[None]:
    """Each piece of work in a stream waits up to so long first."""
    setting("delay_us", microseconds)
    try:
        yield
    finally:
        setting("delay_us", 0)


def put(address: int, content: bytes) -> None:
    call("fake_put", ctypes.c_uint64(address), content, ctypes.c_size_t(len(content)))


def take(address: int, nbytes: int) -> bytes:
    out = ctypes.create_string_buffer(nbytes)
    call("fake_get", out, ctypes.c_uint64(address), ctypes.c_size_t(nbytes))
    return out.raw


class Memory:
    """An allocation, or with `pieces` mapped memory: freed with the last array that shows it."""

    def __init__(self, nbytes: int = 0, pieces: list[int] | None = None) -> None:
        pointer = ctypes.c_uint64()
        self.pieces = pieces
        self.nbytes = sum(pieces) if pieces else nbytes
        size = ctypes.c_size_t(self.nbytes)
        none = ctypes.c_uint64(0)
        if pieces:
            call("cuMemAddressReserve", ctypes.byref(pointer), size, ctypes.c_size_t(0), none, none)
        else:
            call("cuMemAlloc_v2", ctypes.byref(pointer), size)
        self.address = pointer.value
        at = self.address
        for piece in pieces or []:
            handle = ctypes.c_uint64()
            length = ctypes.c_size_t(piece)
            call("cuMemCreate", ctypes.byref(handle), length, None, none)
            call("cuMemMap", ctypes.c_uint64(at), length, ctypes.c_size_t(0), handle, none)
            call("cuMemRelease", handle)
            at += piece

    def __del__(self) -> None:
        pointer = ctypes.c_uint64(self.address)
        if not self.pieces:
            library().cuMemFree_v2(pointer)
            return
        size = ctypes.c_size_t(self.nbytes)
        library().cuMemUnmap(pointer, size)
        library().cuMemAddressFree(pointer, size)


class Array:
    """An array on the fake GPU, by __cuda_array_interface__. Slices share its memory."""

    def __init__(
        self,
        memory: Memory,
        offset: int = 0,
        nbytes: int | None = None,
        *,
        stream: int | None = 1,
        **interface: Any,
    ) -> None:
        self.memory = memory
        self.address = memory.address + offset
        self.nbytes = memory.nbytes - offset if nbytes is None else nbytes
        self.interface: dict[str, Any] = {
            "version": 3,
            "shape": (self.nbytes,),
            "typestr": "|u1",
            "data": (self.address, False),
            "stream": stream,
            **interface,
        }

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return self.interface

    def set(self, content: bytes) -> None:
        put(self.address, content)

    def get(self, nbytes: int | None = None) -> bytes:
        return take(self.address, self.nbytes if nbytes is None else nbytes)


class Stream:
    """A stream, as torch and CuPy show theirs."""

    def __init__(self) -> None:
        handle = ctypes.c_void_p()
        call("cuStreamCreate", ctypes.byref(handle), ctypes.c_uint(1))
        assert handle.value is not None
        self.ptr = handle.value

    def add(self, array: Array, value: int, microseconds: int = 0) -> None:
        """Queues a kernel that adds `value` to each byte, and takes so long."""
        call(
            "fake_add",
            ctypes.c_uint64(array.address),
            ctypes.c_ubyte(value),
            ctypes.c_size_t(array.nbytes),
            ctypes.c_int64(microseconds),
            ctypes.c_void_p(self.ptr),
        )

    def copy(self, target: Array, source: Array) -> None:
        """Queues a kernel that copies."""
        call(
            "fake_copy",
            ctypes.c_uint64(target.address),
            ctypes.c_uint64(source.address),
            ctypes.c_size_t(target.nbytes),
            ctypes.c_void_p(self.ptr),
        )

    def synchronize(self) -> None:
        call("cuStreamSynchronize", ctypes.c_void_p(self.ptr))

    def close(self) -> None:
        self.synchronize()
        call("cuStreamDestroy_v2", ctypes.c_void_p(self.ptr))

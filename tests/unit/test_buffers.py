"""From Python objects to memory: which are taken, with which bytes, and which are refused and why."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import sys
import tempfile
import threading
import weakref
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import rdmatx
from rdmatx import _C
from rdmatx.errors import UnavailableError, UsageError
from rdmatx.verbs import Access, Device, MemoryRegion, ProtectionDomain
from tests.dlpack import DLTensor, capsule_of


def content(buffer: object) -> bytes:
    """The bytes that a transfer of the buffer would send."""
    address, nbytes, _ = _C.buffer_info(buffer)
    return ctypes.string_at(address, nbytes)


def refusal(buffer: object, *, writable: bool = False) -> str:
    with pytest.raises(UsageError) as caught:
        _C.buffer_info(buffer, writable)
    return str(caught.value)


WRITABLE: dict[str, Any] = {
    "bytearray": lambda: bytearray(b"01234567"),
    "memoryview": lambda: memoryview(bytearray(b"01234567")),
    "array": lambda: array.array("d", [1.5]),
    "ctypes": lambda: (ctypes.c_uint64 * 1)(7),
    "numpy": lambda: np.arange(2, dtype=np.float32),
    "numpy scalar array": lambda: np.array(3.5),
    "numpy view": lambda: np.arange(10, dtype=np.int64)[9:],
    "numpy record": lambda: np.zeros(1, dtype=[("Object", "<i4"), ("b", "<f4")]),
    "numpy datetime": lambda: np.zeros(1, dtype="datetime64[ns]"),
    "empty": lambda: rdmatx.empty(8),
}
READONLY: dict[str, Any] = {
    "bytes": lambda: b"01234567",
    "memoryview": lambda: memoryview(b"01234567"),
    "numpy": lambda: np.frombuffer(b"01234567", np.int64),
    "slice": lambda: memoryview(b"0123456789")[1:9],
}


@pytest.mark.parametrize("name", WRITABLE)
def test_writable(name: str) -> None:
    buffer = WRITABLE[name]()
    is_array = isinstance(buffer, np.ndarray)
    assert content(buffer) == (buffer.tobytes() if is_array else bytes(buffer))
    _, nbytes, readonly = _C.buffer_info(buffer, True)
    assert (nbytes, readonly) == (8, False)


@pytest.mark.parametrize("name", READONLY)
def test_readonly(name: str) -> None:
    """Read-only memory may be sent and may not be received into."""
    buffer = READONLY[name]()
    assert content(buffer) == bytes(buffer)
    assert _C.buffer_info(buffer)[2] is True
    assert "read-only" in refusal(buffer, writable=True)


def test_mmap() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(bytes(range(100)))
        file.flush()
        with mmap.mmap(file.fileno(), 100, access=mmap.ACCESS_READ) as mapped:
            assert content(mapped) == bytes(range(100))
            assert "read-only" in refusal(mapped, writable=True)
        with mmap.mmap(file.fileno(), 100) as mapped:
            assert _C.buffer_info(mapped, True)[1:] == (100, False)


@pytest.mark.parametrize("buffer", [b"", bytearray(), np.zeros((0, 3)), rdmatx.empty(0)])
def test_zero_bytes(buffer: object) -> None:
    assert _C.buffer_info(buffer)[1] == 0


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros((4, 4))[:, 1],
        np.zeros((4, 4)).T,
        np.asfortranarray(np.zeros((2, 3))),
        np.zeros(8)[::-1],
        np.broadcast_to(np.zeros(1), (3,)),
        memoryview(bytearray(8))[::2],
    ],
    ids=["column", "transposed", "fortran", "reversed", "broadcast", "stepped"],
)
def test_strided_is_sent_in_its_order_and_not_registered(buffer: Any) -> None:
    assert _C.sent_bytes(buffer) == buffer.tobytes()
    assert "not C-contiguous" in refusal(buffer)
    assert "contiguous copy" in refusal(buffer)


@pytest.mark.parametrize("thing", [None, 3, "text", object(), [b"a"], 1.5])
def test_no_memory(thing: object) -> None:
    assert f"({type(thing).__name__})" in refusal(thing)


def test_python_objects_are_no_memory() -> None:
    assert "Python objects" in refusal(np.array([object()], dtype=object))
    assert "Python objects" in refusal(np.zeros(1, dtype=[("a", "i4"), ("b", "O")]))


@given(
    shape=st.lists(st.integers(0, 4), max_size=4),
    order=st.permutations(range(4)),
    steps=st.lists(st.sampled_from([1, 2, -1]), min_size=4, max_size=4),
)
def test_views(shape: list[int], order: list[int], steps: list[int]) -> None:
    whole = np.arange(int(np.prod(shape)), dtype=np.uint16).reshape(shape)
    turned = whole.transpose([axis for axis in order if axis < whole.ndim])
    view = turned[(..., *(slice(None, None, step) for step in steps[: whole.ndim]))]
    assert _C.sent_bytes(view) == view.tobytes()
    assert _C.sent_bytes(ArrayInterface(view)) == view.tobytes()
    assert _C.sent_bytes(Dlpack(view)) == view.tobytes()
    if view.flags.c_contiguous:
        assert content(view) == view.tobytes()
    else:
        assert "not C-contiguous" in refusal(view)


class ArrayInterface:
    """An object with __array_interface__ alone."""

    def __init__(self, source: Any, **changes: Any) -> None:
        self.source = source
        self.__array_interface__ = {**source.__array_interface__, **changes}


def test_array_interface() -> None:
    source = np.arange(6, dtype=np.int32).reshape(2, 3)
    assert content(ArrayInterface(source)) == source.tobytes()
    assert content(ArrayInterface(source, strides=(12, 4))) == source.tobytes()
    assert content(ArrayInterface(np.array(["ab", "c"]))) == np.array(["ab", "c"]).tobytes()
    assert "not C-contiguous" in refusal(ArrayInterface(source, strides=(4, 8)))
    assert _C.sent_bytes(ArrayInterface(source, strides=(4, 8), shape=(2, 3))) == bytes(
        np.lib.stride_tricks.as_strided(source, (2, 3), (4, 8)).tobytes()
    )
    assert "2 dimensions and 1 strides" in refusal(ArrayInterface(source, strides=(4,)))
    assert "plain bytes" in refusal(ArrayInterface(source, typestr="|O"))
    assert "no address" in refusal(ArrayInterface(source, data=None))
    source.flags.writeable = False
    assert "read-only" in refusal(ArrayInterface(source), writable=True)


class Dlpack:
    """An object with DLPack alone: numpy's."""

    def __init__(self, source: Any, device: tuple[int, int] = (1, 0)) -> None:
        self.source = source
        self.device = device

    def __dlpack__(self, **options: Any) -> object:
        return self.source.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def test_dlpack() -> None:
    source = np.arange(6, dtype=np.float64)
    assert content(Dlpack(source)) == source.tobytes()
    assert content(Dlpack(source[2:])) == source[2:].tobytes()
    assert "not C-contiguous" in refusal(Dlpack(source[::2]))
    assert _C.sent_bytes(Dlpack(source[::-2])) == source[::-2].tobytes()
    assert content(Dlpack(rdmatx.empty(5))) == bytes(5)
    with pytest.raises(UnavailableError, match=r"accelerator.*\.cpu\(\)"):
        _C.buffer_info(Dlpack(source, device=(2, 0)))


def test_elements_of_less_than_a_byte() -> None:
    memory = ctypes.create_string_buffer(b"0123", 4)
    shape = (ctypes.c_int64 * 1)(8)

    def nibbles(stride: int) -> Any:
        strides = (ctypes.c_int64 * 1)(stride)
        tensor = DLTensor(
            ctypes.addressof(memory), (1, 0), 1, 1, 4, 1, shape, strides, 0, None, None
        )

        class FourBits:
            kept = (tensor, strides)

            def __dlpack__(self, **options: Any) -> object:
                return capsule_of(tensor)

        return FourBits()

    assert _C.sent_bytes(nibbles(1)) == b"0123"
    with pytest.raises(UsageError, match="4 bits"):
        _C.sent_bytes(nibbles(2))


def test_dlpack_older_than_1_0() -> None:
    class Older(Dlpack):
        def __dlpack__(self, **options: Any) -> object:
            if options:
                raise TypeError("unexpected argument")
            return super().__dlpack__()

    source = np.arange(6)
    assert content(Older(source)) == source.tobytes()


def test_errors_of_the_object_are_its_own() -> None:
    class Broken(Dlpack):
        def __dlpack__(self, **options: Any) -> object:
            raise BufferError("not today")

    with pytest.raises(BufferError, match="not today"):
        _C.buffer_info(Broken(None))


def test_cuda_array_interface() -> None:
    class OnDevice:
        __cuda_array_interface__: dict[str, Any] = {}  # noqa: RUF012

    with pytest.raises(UnavailableError, match="accelerator"):
        _C.buffer_info(OnDevice())


# ---- what keeps memory alive ------------------------------------------------------------------------


@pytest.fixture
def domain() -> Any:
    with Device(provider="soft") as device, ProtectionDomain(device) as opened:
        yield opened


def test_a_region_holds_its_buffer(domain: ProtectionDomain) -> None:
    class Owner(bytearray):
        pass

    owner = Owner(100)
    watched = weakref.ref(owner)
    region = MemoryRegion(domain, owner)
    with pytest.raises(BufferError):
        owner.extend(b"more")  # exported: it cannot move
    del owner
    gc.collect()
    assert watched() is not None
    region.close()
    gc.collect()
    assert watched() is None


def test_closing_a_region_frees_its_buffer(domain: ProtectionDomain) -> None:
    data = bytearray(100)
    for _ in range(3):
        with MemoryRegion(domain, data):
            pass
        data.extend(b"more")


def test_references_dropped_on_other_threads(domain: ProtectionDomain) -> None:
    data = bytearray(100)
    region = MemoryRegion(domain, data)
    thread = threading.Thread(target=region.close)
    thread.start()
    thread.join()
    data.extend(b"more")


def test_references_do_not_leak(domain: ProtectionDomain) -> None:
    for make in (*WRITABLE.values(), *READONLY.values()):
        buffer = make()
        before = sys.getrefcount(buffer)
        for _ in range(10):
            _C.buffer_info(buffer)
            MemoryRegion(domain, buffer, access=Access.NONE).close()
        assert sys.getrefcount(buffer) == before


def test_readonly_memory_is_registered_for_reading_only(domain: ProtectionDomain) -> None:
    MemoryRegion(domain, b"data", access=Access.NONE).close()
    MemoryRegion(domain, b"data", access=Access.REMOTE_READ).close()
    for access in (Access.LOCAL_WRITE, Access.LOCAL_WRITE | Access.REMOTE_WRITE):
        with pytest.raises(UsageError, match="read-only"):
            MemoryRegion(domain, b"data", access=access)

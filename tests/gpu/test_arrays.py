"""Arrays of a GPU in every operation: at every offset, across mapped pieces, of every kind of object."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest

import rdmatx
from rdmatx import _C
from rdmatx.errors import CudaError, UnavailableError, UsageError
from tests.gpu.conftest import Pair
from tests.gpu.fake_driver import LIBRARY, Array, Memory, Stream, call, calls, faults
from tests.launch import ROOT

pytestmark = pytest.mark.soft_only

# The same bytes at no two places within a period of a prime.
PATTERN = bytes(i * 7 % 251 for i in range(1 << 18))

LAYOUTS: dict[str, tuple[Any, Any, int]] = {
    # allocation of the source, of the target, bytes of a transfer
    "one allocation": (1 << 20, 1 << 20, 8300),
    "two pieces": ([8192, 1 << 16], [8192, 1 << 16], 8300),
    "three pieces": ([8192, 4096, 1 << 16], [4096, 8192, 1 << 16], 13000),
}


def memory(layout: Any) -> Memory:
    return Memory(pieces=layout) if isinstance(layout, list) else Memory(layout)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", LAYOUTS)
def test_every_operation_at_every_offset(pair: Pair, name: str, gpu_direct: str) -> None:
    here, there, nbytes = LAYOUTS[name]
    source, target = memory(here), memory(there)
    landing = bytearray(nbytes)
    before = faults()
    step = 1 if gpu_direct == "auto" else 13
    with pair.context.register(landing, "rw") as host:
        for offset in [*range(0, 4097, step), 4096]:
            sent = PATTERN[offset % 200 : offset % 200 + nbytes]
            array, received = Array(source, offset, nbytes), Array(target, 4096 - offset, nbytes)
            array.set(sent)
            work = pair.far.irecv(received, 1)
            pair.near.send(array, 1)
            assert work.wait() == nbytes
            assert received.get() == sent, ("send, recv", offset)

            pair.near.write(array, host.key())
            assert landing == sent, ("write", offset)
            landing[:] = reversed(sent)
            pair.near.read(received, host.key())
            assert received.get() == landing, ("read", offset)

            half = nbytes // 2
            blocks = [(Array(source, offset, half), host.key(), nbytes - half), (array, host.key())]
            pair.near.write_many(blocks[:1], notify=offset)
            assert pair.far.next_notification() == offset
            assert landing[nbytes - half :] == sent[:half], ("write_many", offset)
    assert faults() == before


@pytest.mark.timeout(240)
@pytest.mark.parametrize("gpu_direct", ["auto"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_a_region_at_every_offset(pair: Pair, name: str) -> None:
    _, there, nbytes = LAYOUTS[name]
    target = memory(there)
    for offset in range(4097):
        array = Array(target, offset, nbytes)
        sent = PATTERN[offset % 200 : offset % 200 + nbytes]
        with pair.context.register(array, "rw") as region:
            key = rdmatx.RemoteKey.from_bytes(bytes(region.key()))
            pair.near.write(sent, key)
            assert array.get() == sent, ("written by the peer", offset)
            back = bytearray(nbytes)
            pair.near.read(back, key)
            assert back == sent, ("read by the peer", offset)
            work = pair.far.irecv(region[1:], 0)
            pair.near.send(sent[1:])
            work.wait()
            assert array.get() == sent, ("received into the region", offset)


@pytest.mark.parametrize("nbytes", [0, 1, 8192, 8193, 3_000_000])
def test_between_a_gpu_and_the_host(pair: Pair, nbytes: int) -> None:
    memory = Memory(max(nbytes, 1))
    array = Array(memory, 0, nbytes)
    sent = (PATTERN * 12)[:nbytes]
    work = pair.far.irecv(array, 0)
    pair.near.send(sent)
    assert work.wait() == nbytes
    assert nbytes == 0 or array.get() == sent
    landing = bytearray(nbytes)
    work = pair.far.irecv(landing, 0)
    pair.near.isend(array).wait()
    assert work.wait() == nbytes
    assert landing == sent


def test_a_short_message_fills_the_beginning(pair: Pair) -> None:
    memory = Memory(100_000)
    array = Array(memory)
    for size in (100, 50_000):
        array.set(bytes(100_000))
        work = pair.far.irecv(array)
        pair.near.send(PATTERN[:size])
        assert work.wait() == size
        assert array.get() == PATTERN[:size] + bytes(100_000 - size)
    work = pair.far.irecv(Array(memory, 0, 40_000))
    with pytest.raises(rdmatx.errors.SizeMismatchError):
        pair.near.send(array)
    with pytest.raises(rdmatx.errors.SizeMismatchError):
        work.wait()


@pytest.mark.parametrize("type_name", ["<f2", "<f4", "<f8", "<i8", "|b1", "<c16", "|V3"])
def test_elements_of_every_size(pair: Pair, type_name: str) -> None:
    size = int(type_name[2:])
    memory = Memory(24_000 * size)
    shape = (20, 30, 40)
    array = Array(memory, 0, shape=shape, typestr=type_name, strides=None)
    dense = Array(
        memory, 0, shape=shape, typestr=type_name, strides=(1200 * size, 40 * size, size), version=2
    )
    del dense.interface["stream"]
    content = (PATTERN * 2)[: 24_000 * size]
    array.set(content)
    for each in (array, dense):
        landing = bytearray(24_000 * size)
        work = pair.far.irecv(landing)
        pair.near.send(each)
        assert work.wait() == len(content)
        assert landing == content


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a mask": ({"mask": object()}, "is masked"),
    "strides": ({"shape": (10, 10), "strides": (20, 1)}, "not C-contiguous"),
    "wrong strides": ({"strides": (1, 1)}, "1 dimensions and 2 strides"),
    "version 1": ({"version": 1}, "version 1"),
    "stream 0": ({"stream": 0}, "names stream 0"),
    "objects": ({"typestr": "|O8"}, "not plain bytes"),
    "read-only": ({"data": (4096, True)}, "read-only"),
    "no address": ({"data": (0, False)}, "names no address"),
    "the end of the allocation": ({"shape": (100_001,)}, "passes the end of its allocation"),
    "no memory of a GPU": ({"data": (4096, False)}, "no GPU has an allocation"),
}


@pytest.mark.parametrize("gpu_direct", ["auto"])
@pytest.mark.parametrize("what", REFUSED)
def test_what_is_refused(pair: Pair, what: str) -> None:
    interface, words = REFUSED[what]
    memory = Memory(100_000)
    with pytest.raises(UsageError, match=words):
        pair.near.irecv(Array(memory, **interface))


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_what_the_protocol_asks_for_is_missed(pair: Pair) -> None:
    array = Array(Memory(1000))
    del array.interface["typestr"]
    with pytest.raises(UsageError, match='has no "typestr"'):
        pair.near.isend(array)


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_pinned_memory_is_the_hosts(pair: Pair) -> None:
    pointer = ctypes.c_void_p()
    call("cuMemHostAlloc", ctypes.byref(pointer), ctypes.c_size_t(20_000), ctypes.c_uint(0))
    assert pointer.value is not None
    exports = calls("cuMemGetHandleForAddressRange")
    array = Array(Memory(8), data=(pointer.value, False), shape=(20_000,))
    ctypes.memmove(pointer, PATTERN, 20_000)
    landing = bytearray(20_000)
    work = pair.far.irecv(landing)
    pair.near.send(array)
    work.wait()
    assert landing == PATTERN[:20_000]
    assert calls("cuMemGetHandleForAddressRange") == exports
    call("cuMemFreeHost", pointer)


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_memory_of_our_own(pair: Pair) -> None:
    buffer = rdmatx.empty(50_000, device="cuda:1")
    assert isinstance(buffer, rdmatx.buffers.DeviceBuffer)
    assert (buffer.gpu, buffer.nbytes, len(buffer)) == (1, 50_000, 50_000)
    assert "50000 bytes on GPU 1" in repr(buffer)
    work = pair.far.irecv(buffer)
    pair.near.send(PATTERN[:50_000])
    work.wait()
    landing = bytearray(50_000)
    work = pair.far.irecv(landing)
    pair.near.send(buffer)
    work.wait()
    assert landing == PATTERN[:50_000]
    assert [choice["gpu"] for choice in pair.near.stats()["gpus"]] == [1]
    with pytest.raises(CudaError, match="cuDeviceGet"):
        rdmatx.empty(8, device="cuda:9")
    with pytest.raises(UsageError, match="cannot be negative"):
        rdmatx.empty(-1, device="cuda:0")


@pytest.mark.parametrize("gpu_direct", ["auto"])
def test_verbs_take_memory_of_the_host_only(pair: Pair) -> None:
    array = Array(Memory(100))
    for refuse in (_C.buffer_info, _C.sent_bytes):
        with pytest.raises(UnavailableError, match="memory of an accelerator"):
            refuse(array)


def test_without_a_driver_the_reason_is_told() -> None:
    code = """if True:
        import rdmatx
        class OnGpu:
            __cuda_array_interface__ = {"version": 3, "shape": (9,), "typestr": "|u1",
                                        "data": (4096, False), "stream": None}
        for use in (lambda: rdmatx.empty(8, device="cuda"), lambda: context.register(OnGpu())):
            with rdmatx.Context(provider="soft") as context:
                try:
                    use()
                except rdmatx.errors.UnavailableError as error:
                    print(error)
        report = rdmatx._C.gpu_report()
        assert not report["available"] and not report["gpus"], report
        """
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={**os.environ, "RDMATX_CUDA_LIBRARY": "/nonexistent/libcuda.so.1"},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no GPU can be used: the CUDA driver cannot be loaded") == 2


def test_the_library_is_there(fake_gpu: None) -> None:
    """The streams' threads end with their work, so that tests see what is left open."""
    stream, array = Stream(), Array(Memory(1000))
    stream.add(array, 1)
    stream.close()
    assert LIBRARY.exists()

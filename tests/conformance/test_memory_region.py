"""ibv_reg_mr(3) and ibv_dereg_mr(3)."""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from rdmatx.errors import UsageError, VerbsError
from rdmatx.verbs import Access, Device, MemoryRegion, ProtectionDomain, SendWork
from tests.conformance.ends import ALL, SUCCESS, End

Make = Callable[..., End]
MakePair = Callable[..., tuple[End, End]]


@pytest.fixture
def domain(device: Device) -> Iterator[ProtectionDomain]:
    with ProtectionDomain(device) as opened:
        yield opened


@pytest.mark.parametrize("nbytes", [1, 7, 4096, 4097, 1 << 20])
def test_region_covers_the_buffer(domain: ProtectionDomain, nbytes: int) -> None:
    """The region starts at addr and is length bytes long; its keys are told for work requests."""
    data = np.zeros(nbytes, np.uint8)
    with MemoryRegion(domain, data, access=ALL) as region:
        assert region.address == data.ctypes.data
        assert region.nbytes == nbytes
        assert region.access == ALL
        assert region.local_key != 0
        assert region.remote_key != 0


def test_regions_have_keys_of_their_own(domain: ProtectionDomain) -> None:
    data = bytearray(64)
    with (
        MemoryRegion(domain, data, access=ALL) as one,
        MemoryRegion(domain, data, access=ALL) as other,
    ):
        assert one.local_key != other.local_key
        assert one.remote_key != other.remote_key


def test_empty_buffer(domain: ProtectionDomain) -> None:
    """No bytes need no registration: the region exists, and adds nothing to a work request."""
    with MemoryRegion(domain, bytearray(), access=ALL) as region:
        assert region.nbytes == 0
        assert SendWork.send().add(region).nbytes == 0


@pytest.mark.parametrize("access", [Access.REMOTE_WRITE, Access.REMOTE_ATOMIC])
def test_remote_write_needs_local_write(domain: ProtectionDomain, access: Access) -> None:
    """Where remote write or remote atomic is set, local write must be set too."""
    with pytest.raises((UsageError, VerbsError), match=r"(?i)local.write"):
        MemoryRegion(domain, bytearray(64), access=access)


def test_read_only_memory_may_be_read(domain: ProtectionDomain) -> None:
    """Local read access is always enabled: memory that cannot be written can be sent."""
    with MemoryRegion(domain, bytes(range(64)), access=Access.NONE) as region:
        assert region.nbytes == 64


@pytest.mark.parametrize("access", [Access.LOCAL_WRITE, ALL])
def test_read_only_object_cannot_be_written(domain: ProtectionDomain, access: Access) -> None:
    with pytest.raises(UsageError, match=r"(?i)read-only"):
        MemoryRegion(domain, b"constant", access=access)


class Pages:
    """Memory at any address, told by the array interface, as a foreign library might tell it."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "version": 3,
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
        }


def test_memory_that_is_not_there(domain: ProtectionDomain) -> None:
    """An address that nothing is mapped at cannot be registered: EFAULT."""
    # Not a mapping just closed: another thread may have been given its addresses by now. The second
    # mebibyte lies below every program, and the kernel gives out nothing there unasked.
    with pytest.raises(VerbsError) as caught:
        MemoryRegion(domain, Pages(1 << 20, 1 << 16), access=Access.LOCAL_WRITE)
    assert caught.value.errno == errno.EFAULT
    assert "ibv_reg_mr" in str(caught.value)


def test_pages_without_write_permission(domain: ProtectionDomain, tmp_path: object) -> None:
    """Local write on pages that are mapped read-only is refused: EFAULT; without it they may be
    registered."""
    path = os.path.join(str(tmp_path), "file")
    with open(path, "wb") as out:
        out.write(bytes(8192))
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 8192, prot=mmap.PROT_READ) as pages:
        array = np.frombuffer(pages, np.uint8)
        with pytest.raises(VerbsError) as caught:
            MemoryRegion(domain, Pages(array.ctypes.data, 8192), access=Access.LOCAL_WRITE)
        assert caught.value.errno == errno.EFAULT
        MemoryRegion(domain, array, access=Access.REMOTE_READ).close()
        del array


def test_region_holds_its_memory(make_pair: MakePair) -> None:
    """The buffer cannot go while it is registered: the region holds it."""
    one, other = make_pair()
    region = one.own(MemoryRegion(one.domain, np.full(1 << 16, 7, np.uint8), access=ALL))
    target = other.memory(1 << 16)
    other.receive(target)
    one.qp.post_send(SendWork.send().add(region).signaled())
    assert one.sent()[0].status == SUCCESS
    assert other.received()[0].nbytes == 1 << 16
    assert bytes(target) == bytes([7]) * (1 << 16)


def test_key_after_deregistration(make_pair: MakePair) -> None:
    """A key dies with its region: a peer that still uses it gets a remote access error."""
    one, other = make_pair()
    source = one.memory(b"x" * 64)
    target = other.memory(64)
    address, key = target.address, target.key
    target.region.close()
    one.qp.post_send(SendWork.write(address, key).add(source.region).signaled())
    assert one.sent()[0].status.name == "REMOTE_ACCESS_ERROR"
    assert bytes(target) == bytes(64)


def test_region_after_close_is_refused(make_end: Make) -> None:
    end = make_end()
    memory = end.memory(64)
    memory.region.close()
    with pytest.raises(RuntimeError, match="closed"):
        SendWork.send().add(memory.region)


def test_many_regions(domain: ProtectionDomain) -> None:
    """Registration and its end, many times over: keys are told anew and nothing runs out."""
    data = bytearray(4096)
    for _ in range(500):
        MemoryRegion(domain, data, access=ALL).close()


def test_forked_child_can_read_registered_memory(pair: tuple[End, End]) -> None:
    """A child that is forked while memory is registered sees that memory, and what it writes to its own copy
    takes nothing away from under the device (ibv_fork_init(3))."""
    one, other = pair
    source, target = one.memory(b"parent's"), other.memory(8)
    child = os.fork()
    if child == 0:
        seen = bytes(source.content) == b"parent's"
        source.content[:] = b"a child."
        target.content[:] = b"a child."
        os._exit(0 if seen else 1)
    assert os.waitpid(child, 0)[1] == 0
    one.qp.post_send(SendWork.write(target.address, target.key).add(source.region).signaled())
    assert one.sent()[0].status == SUCCESS
    assert bytes(target) == b"parent's"

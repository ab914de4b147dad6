"""From torch tensors to memory."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import pytest

import rdmatx
from rdmatx import _C
from rdmatx.errors import UsageError
from rdmatx.verbs import Device, MemoryRegion, ProtectionDomain

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class OldTensor(torch.Tensor):
    """A tensor as torch had them before DLPack's exchange interface."""

    __dlpack_c_exchange_api__ = None


KINDS = {"new": lambda tensor: tensor, "old": lambda tensor: tensor.as_subclass(OldTensor)}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Any:
    return KINDS[request.param]


def content(tensor: object) -> bytes:
    address, nbytes, readonly = _C.buffer_info(tensor)
    assert not readonly
    return ctypes.string_at(address, nbytes)


def refusal(tensor: object) -> str:
    with pytest.raises(UsageError) as caught:
        _C.buffer_info(tensor)
    assert "\n" not in str(caught.value)
    return str(caught.value)


DTYPE_NAMES = (
    "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
    "complex32 complex64 complex128 float8_e4m3fn float8_e5m2"
)
DTYPES = [getattr(torch, name) for name in DTYPE_NAMES.split() if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(kind: Any, dtype: Any) -> None:
    raw = torch.arange(48, dtype=torch.uint8)
    tensor = raw.bool() if dtype == torch.bool else raw.view(dtype)
    address, nbytes, _ = _C.buffer_info(kind(tensor), True)
    assert (address, nbytes) == (tensor.data_ptr(), tensor.nbytes)


@pytest.mark.parametrize("shape", [(), (1,), (0,), (3, 0, 2), (2, 3, 4), (1, 5, 1)])
def test_shapes(kind: Any, shape: tuple[int, ...]) -> None:
    tensor = torch.rand(shape)
    assert content(kind(tensor)) == tensor.numpy().tobytes()


def test_views_with_an_offset(kind: Any) -> None:
    tensor = torch.arange(20).reshape(4, 5)
    assert content(kind(tensor[1:3])) == tensor[1:3].numpy().tobytes()
    assert content(kind(tensor[2, 1:])) == tensor[2, 1:].numpy().tobytes()
    assert content(kind(tensor[:, :1][2:3])) == tensor[2:3, :1].numpy().tobytes()


def test_strided_is_sent_in_its_order_and_not_registered(kind: Any) -> None:
    tensor = torch.rand(4, 5)
    image = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    views = [tensor.T, tensor[:, 1], tensor[::2], torch.rand(1).expand(3), image]
    views += [tensor.to(torch.complex64).T, tensor.double()[:, 2:4]]
    for view in views:
        assert _C.sent_bytes(kind(view)) == view.contiguous().numpy().tobytes()
        assert "not C-contiguous" in refusal(kind(view))
    half = tensor.bfloat16().T
    assert _C.sent_bytes(kind(half)) == half.contiguous().view(torch.int16).numpy().tobytes()


def test_autograd_does_not_matter(kind: Any) -> None:
    """This is below autograd: raw memory, of leaves and of results."""
    leaf = torch.zeros(4, requires_grad=True)
    for tensor in (leaf, leaf * 2, torch.nn.Parameter(torch.zeros(3)), leaf.detach()):
        assert _C.buffer_info(kind(tensor), True)[1] == tensor.nbytes


def test_lazy_values_are_refused(kind: Any) -> None:
    conjugate = torch.tensor([1 + 2j]).conj()
    assert "resolve_conj" in refusal(kind(conjugate))
    assert "resolve_neg" in refusal(kind(conjugate.imag))
    many = torch.rand(5, dtype=torch.complex64).conj()
    for lazy in (conjugate, conjugate.imag, many, many.imag, many[::2]):
        with pytest.raises(UsageError, match=r"lazily|lazy"):
            _C.sent_bytes(kind(lazy))
    assert content(conjugate.resolve_conj()) == conjugate.resolve_conj().numpy().tobytes()


def test_tensors_without_plain_memory(kind: Any) -> None:
    assert "no plain memory" in refusal(kind(torch.zeros(3, device="meta")))
    assert "no plain memory" in refusal(torch.zeros(3, 3).to_sparse())


def test_fake_tensors() -> None:
    fake_tensor = pytest.importorskip("torch._subclasses.fake_tensor")
    with fake_tensor.FakeTensorMode():
        fake = torch.zeros(3)
    assert "memory" in refusal(fake)


def test_a_registration_holds_the_storage() -> None:
    """Also where the tensor is given another one meanwhile."""
    with Device(provider="soft") as device, ProtectionDomain(device) as domain:
        tensor = torch.zeros(1000)
        storage = weakref.ref(tensor.untyped_storage())
        address = tensor.data_ptr()
        region = MemoryRegion(domain, tensor)
        tensor.data = torch.ones(1000)
        gc.collect()
        assert storage() is not None
        assert ctypes.string_at(address, 4000) == bytes(4000)
        region.close()
        gc.collect()
        assert storage() is None


def test_empty_as_a_tensor() -> None:
    buffer = rdmatx.empty(4096)
    tensor = torch.from_dlpack(buffer)
    assert (tensor.dtype, tensor.data_ptr()) == (torch.uint8, buffer.address)
    floats = tensor.view(torch.float32)
    floats.fill_(1.5)
    del buffer, tensor
    gc.collect()
    assert floats.sum() == 1.5 * 1024
    assert torch.frombuffer(rdmatx.empty(16), dtype=torch.bfloat16).shape == (8,)

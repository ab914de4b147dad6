"""Strided arrays on either end: a message is the row-major sequence of the elements, wherever they lie."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rdmatx import errors
from tests.launch import Rank, launch
from tests.multiprocess.conftest import Pair
from tests.multiprocess.messages import content
from tests.multiprocess.test_messages import connect

DTYPES = ["u1", "<i2", "<f4", "<f8", "<c16", "S3", "V12"]
EAGER_BYTES = 8192


def place(shape: list[int], dtype: str, order: list[int], steps: list[int], seed: int) -> Any:
    """A view of that shape: its dimensions lie in some order, with gaps, some backwards."""
    rank = len(shape)
    order = [axis for axis in order if axis < rank]
    whole_shape = [shape[axis] * abs(steps[axis]) for axis in order]
    whole = np.frombuffer(
        content(int(np.prod(whole_shape)) * np.dtype(dtype).itemsize, seed), dtype
    ).reshape(whole_shape)
    turned = whole.copy().transpose(np.argsort(order)) if rank else whole.copy()
    return turned[(..., *(slice(None, None, steps[axis]) for axis in range(rank)))]


def untouched(view: Any) -> bytes:
    """What lies around the elements of a view, in the array that it is a view of."""
    whole = view if view.base is None else view.base
    around = whole.copy()
    marks = np.zeros(whole.shape, bool)
    offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    index = np.full(view.shape, offset, np.int64)
    for axis, (extent, stride) in enumerate(zip(view.shape, view.strides, strict=True)):
        steps = np.arange(extent, dtype=np.int64) * stride
        index += steps.reshape([-1 if i == axis else 1 for i in range(view.ndim)])
    marks.reshape(-1)[index.reshape(-1) // whole.itemsize] = True
    return bytes(around[~marks].tobytes())


layouts = st.fixed_dictionaries(
    {
        "order": st.permutations(range(4)),
        "steps": st.lists(st.sampled_from([1, 1, 2, -1, -3]), min_size=4, max_size=4),
    }
)
shapes = st.one_of(
    st.lists(st.integers(0, 6), max_size=4),
    st.lists(st.integers(15, 40), min_size=2, max_size=3),  # more than one eager message holds
)


def test_any_layout_to_any_other(pair: Pair) -> None:
    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(shape=shapes, dtype=st.sampled_from(DTYPES), here=layouts, there=layouts)
    def exchange(shape: list[int], dtype: str, here: Any, there: Any) -> None:
        source = place(shape, dtype, seed=1, **here)
        target = place(shape, dtype, seed=2, **there)
        around = untouched(target)
        work = pair.near.isend(source)
        assert pair.far.recv(target) == source.nbytes
        work.wait()
        assert target.tobytes() == source.tobytes()
        assert untouched(target) == around

    exchange()


def test_the_receive_is_there_first(pair: Pair) -> None:
    for extent in (5, 200):
        target = np.zeros((extent, 2 * extent))[:, ::2].T
        source = np.arange(extent * extent, dtype=float).reshape(extent, extent)[::-1]
        work = pair.far.irecv(target)
        pair.near.send(source)
        assert work.wait() == source.nbytes
        assert np.array_equal(target, source)


def test_one_end_dense(pair: Pair) -> None:
    """The other end sees plain bytes, whatever it makes of them."""
    source = np.arange(30000, dtype="<i4").reshape(100, 300)
    landing = bytearray(source.nbytes)
    work = pair.near.isend(source.T)
    assert pair.far.recv(landing) == source.nbytes
    work.wait()
    assert landing == source.T.tobytes()
    target = np.zeros_like(source)
    work = pair.near.isend(landing)
    assert pair.far.recv(target.T) == source.nbytes
    work.wait()
    assert np.array_equal(target, source)


@pytest.mark.parametrize("sent", [0, 1, 7, 8, 100, 801, 5000, 60001])
def test_a_short_message_fills_the_first_elements(pair: Pair, sent: int) -> None:
    whole = np.zeros((200, 100), "<u4")
    target = whole.T[::-1, ::2]  # 40,000 bytes
    assert target.nbytes == 40000
    if sent > target.nbytes:
        work = pair.near.isend(content(sent))
        with pytest.raises(errors.SizeMismatchError):
            pair.far.recv(target)
        with pytest.raises(errors.SizeMismatchError):
            work.wait()
        assert not whole.any()
        return
    work = pair.near.isend(content(sent))
    assert pair.far.recv(target) == sent
    work.wait()
    assert target.tobytes() == content(sent) + bytes(target.nbytes - sent)


@pytest.mark.parametrize("columns", [20_000, 150_000, 300_000])
def test_few_large_blocks_are_moved_as_they_lie(pair: Pair, columns: int) -> None:
    """The columns of a wide matrix: the same bytes, also where a small message meets such a receive."""
    wide = np.frombuffer(content(16 * columns), np.uint8).reshape(8, 2 * columns)
    whole = np.zeros((8, 2 * columns), np.uint8)
    target = whole[::-1, columns // 2 : columns // 2 + columns]
    source = wide[::-1, 5 : 5 + columns]
    work = pair.near.isend(source)
    assert pair.far.recv(target) == source.nbytes
    work.wait()
    assert np.array_equal(target, source)
    pair.near.send(content(EAGER_BYTES, 9))
    assert pair.far.recv(target) == EAGER_BYTES
    landing = pair.far.irecv(target[1:])
    pair.near.send(content(5000, 8))
    assert landing.wait() == 5000
    expected = source.copy()
    expected[0, :EAGER_BYTES] = np.frombuffer(content(EAGER_BYTES, 9), np.uint8)
    expected[1, :5000] = np.frombuffer(content(5000, 8), np.uint8)
    assert np.array_equal(target, expected)
    target[:] = 0
    assert not whole.any()  # nothing beside the columns was touched
    with pair.context.register(whole, access="rw") as region:
        pair.near.write(source, region.key())
        assert whole.tobytes()[: source.nbytes] == source.tobytes()
        back = np.zeros((8, 2 * columns), np.uint8)[::-1, columns:]
        pair.near.read(back, region.key())
        assert np.array_equal(back, source)


def test_overlapping_elements_are_sent_and_not_received_into(pair: Pair) -> None:
    memory = np.arange(3000, dtype="<f4")
    windows = np.lib.stride_tricks.sliding_window_view(memory, 10, writeable=True)
    expanded = np.lib.stride_tricks.as_strided(memory, (5, 1000), (0, 4))
    for source in (windows, expanded, np.broadcast_to(memory[:1], (70000,))):
        landing = bytearray(source.nbytes)
        work = pair.near.isend(source)
        assert pair.far.recv(landing) == source.nbytes
        work.wait()
        assert landing == source.tobytes()
    for target in (windows, expanded):
        for receive in (pair.far.recv, pair.far.irecv):
            with pytest.raises(errors.UsageError, match="share memory"):
                receive(target)
    pair.near.send(b"goes on")
    assert pair.far.recv(bytearray(7)) == 7


def test_written_and_read(pair: Pair) -> None:
    for rows, columns in ((3, 5), (300, 70), (4, 100000)):
        memory = bytearray(rows * columns * 4)
        source = np.arange(rows * columns, dtype="<i4").reshape(columns, rows).T
        with pair.context.register(memory, access="rw") as region:
            pair.near.write(source, region.key())
            assert memory == source.tobytes()
            back = np.zeros((columns, 2 * rows), "<i4")[:, ::-2].T
            pair.near.read(back, region.key())
            assert np.array_equal(back, source)
            with pytest.raises(errors.UsageError, match="share memory"):
                pair.near.read(np.lib.stride_tricks.as_strided(back, (2, 2), (0, 4)), region.key())


def test_written_many(pair: Pair) -> None:
    memory = bytearray(80000)
    matrix = np.arange(10000, dtype="<i4").reshape(100, 100)
    with pair.context.register(memory, access="rw") as region:
        key = region.key()
        pair.near.write_many(
            [(matrix.T, key, 0), (b"plain", key, 40000), (matrix[::-1, 3], key, 50000)]
        )
    assert memory[:40000] == matrix.T.tobytes()
    assert memory[40000:40005] == b"plain"
    assert memory[50000:50400] == matrix[::-1, 3].tobytes()


def test_a_region_is_dense(pair: Pair) -> None:
    with pytest.raises(errors.UsageError, match="not C-contiguous"):
        pair.context.register(np.zeros((4, 4)).T)


def two_processes(rank: Rank, provider: str, device: str | None) -> int:
    context, connection = connect(rank, provider, device)
    with context, connection:
        count = 0
        for extent in (2, 33, 400):
            matrix = np.arange(extent * extent, dtype="<f8").reshape(extent, extent)
            if rank.index == 0:
                connection.send(matrix.T)
                back = np.zeros((extent, 3 * extent))[:, ::3]
                assert connection.recv(back) == matrix.nbytes
                assert np.array_equal(back, matrix.T[::-1])
            else:
                target = np.zeros_like(matrix)
                assert connection.recv(target.T) == matrix.nbytes
                assert np.array_equal(target, matrix)
                connection.send(target.T[::-1])
            count += 1
        return count


def test_between_processes(provider: str, device_name: str | None) -> None:
    assert launch(two_processes, provider, device_name) == [3, 3]


# ---- torch -------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_torch_views(pair: Pair) -> None:
    torch: Any = pytest.importorskip("torch")
    image = torch.rand(2, 3, 40, 50)
    views = {
        "transposed": torch.rand(70, 90).t(),
        "channels last": image.to(memory_format=torch.channels_last),
        "strided": torch.rand(50, 40)[::2, 1::3],
        "complex": torch.rand(40, 30, dtype=torch.complex64).T,
        "bfloat16": torch.rand(64, 65).to(torch.bfloat16).T,
        "bool": (torch.rand(9, 9) > 0.5).T,
        "expanded": torch.rand(1, 300).expand(40, 300),
        "requires grad": torch.rand(40, 50, requires_grad=True).T,
        "real part": torch.rand(3000, dtype=torch.complex64).real,
    }
    for name, source in views.items():
        target = torch.zeros(source.shape, dtype=source.dtype)
        backwards = torch.zeros(tuple(reversed(source.shape)), dtype=source.dtype).permute(
            *reversed(range(source.dim()))
        )
        for landing in (target, backwards):
            work = pair.near.isend(source)
            assert pair.far.recv(landing) == source.nbytes, name
            work.wait()
            assert torch.equal(landing, source.detach()), name
    with pytest.raises(errors.UsageError, match="share memory"):
        pair.far.recv(views["expanded"])


@pytest.mark.torch
def test_torch_lazy_values(pair: Pair) -> None:
    torch: Any = pytest.importorskip("torch")
    conjugate = torch.rand(100, dtype=torch.complex64).conj()
    with pytest.raises(errors.UsageError, match="resolve_conj"):
        pair.near.send(conjugate)
    with pytest.raises(errors.UsageError, match="resolve_neg"):
        pair.near.send(conjugate.imag)

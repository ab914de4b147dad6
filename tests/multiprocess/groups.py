"""What the tests of groups share: making one, and what its collectives should give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import rdmatx
from rdmatx import bootstrap
from tests.launch import Rank
from tests.multiprocess.conftest import PATIENCE

FLOATS = ("float32", "float64", "float16", "complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
TYPES = (*FLOATS, *INTEGERS, "bool")
OPERATIONS = ("sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "premul_sum")
FACTOR = 0.5


def one_on_verbs(values: Sequence[Any], chosen: Any) -> list[Any]:
    """All values as parameters of a test; on a verbs device, where many ranks may share one processor, one of
    them alone."""
    marks = pytest.mark.soft_only
    return [value if value == chosen else pytest.param(value, marks=marks) for value in values]


def make_group(
    rank: Rank,
    provider: str,
    device: str | None,
    *,
    ranks: list[int] | None = None,
    name: str = "test",
    timeout: float = PATIENCE,
) -> rdmatx.Group:
    """A group of those ranks, or all; the lowest one serves the store until it is complete."""
    members = list(range(rank.world)) if ranks is None else ranks
    context = rdmatx.Context(device, provider, timeout=timeout)
    first = members[0]
    serving = rank.index == first
    store = bootstrap.TCPStore(
        "127.0.0.1:0" if serving else rank.receive(first), serve=serving, timeout=timeout
    )
    with store:
        if serving:
            for other in members[1:]:
                rank.send(other, store.address)
        group = rdmatx.Group(
            store,
            members.index(rank.index),
            len(members),
            name=name,
            context=context,
            timeout=timeout,
        )
    group._own_context = context  # closed with the group
    return group


def reducible(dtype: str, op: str) -> bool:
    if op in ("band", "bor", "bxor"):
        return dtype not in FLOATS
    if op in ("min", "max"):
        return "complex" not in dtype
    if op == "premul_sum":
        return dtype in FLOATS
    return op != "avg" or dtype != "bool"


def values(dtype: str, op: str, seed: int, count: int = 257) -> Any:
    """Numbers that no reduction of a few ranks drives out of their type's range."""
    random = np.random.default_rng(seed)
    if dtype == "bool":
        return random.integers(0, 2, count).astype(bool)
    if dtype in INTEGERS:
        info = np.iinfo(dtype)
        return random.integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    real = random.uniform(0.5, 1.5, count) if op == "prod" else random.uniform(-1, 1, count)
    if "complex" in dtype:
        return (real + 1j * random.uniform(-0.5, 0.5, count)).astype(dtype)
    return real.astype(dtype)


def reduced(dtype: str, op: str, parts: list[Any]) -> tuple[Any, Any]:
    """What a reduction gives, and how far the result may be from it, since its order is not told."""
    if dtype in FLOATS and op not in ("min", "max"):
        wide = [part.astype("complex128" if "complex" in dtype else "float64") for part in parts]
        eps = float(np.finfo(dtype).eps)
        if op == "prod":
            product = np.prod(wide, axis=0)
            size = np.prod([np.abs(part.real) + np.abs(part.imag) for part in wide], axis=0)
            return product, 4 * len(parts) * eps * size
        scale = {"avg": 1 / len(parts), "premul_sum": FACTOR}.get(op, 1.0)
        total = np.sum(wide, axis=0) * scale
        return total, 2 * (len(parts) + 1) * eps * np.sum(np.abs(wide), axis=0) * scale
    with np.errstate(over="ignore"):
        if op == "min":
            result = np.minimum.reduce(parts)
        elif op == "max":
            result = np.maximum.reduce(parts)
        elif op == "band" or (dtype == "bool" and op == "prod"):
            result = np.bitwise_and.reduce(parts)
        elif op == "bor" or (dtype == "bool" and op == "sum"):
            result = np.bitwise_or.reduce(parts)
        elif op == "bxor":
            result = np.bitwise_xor.reduce(parts)
        elif op == "prod":
            result = np.multiply.reduce(parts, dtype=dtype)
        else:
            result = np.add.reduce(parts, dtype=dtype)
            if op == "avg":
                result = (
                    np.trunc(result / len(parts)).astype(dtype)
                    if dtype != "int64"
                    else _divided(result, len(parts))
                )
    return result, 0


def _divided(sums: Any, by: int) -> Any:
    """Toward zero, without a float in between."""
    return np.sign(sums) * (np.abs(sums) // by)


def check(got: Any, expected: tuple[Any, Any], what: str) -> None:
    """Compares with what `reduced` told, repeated as often as the array is long."""
    reference, bound = expected
    wanted = np.resize(reference, got.size)
    if np.isscalar(bound):
        same = bool(np.array_equal(got, wanted.astype(got.dtype)))
        assert same, f"{what}: {np.flatnonzero(got != wanted.astype(got.dtype))[:5]} differ"
        return
    error = np.abs(got.astype(wanted.dtype) - wanted)
    assert bool(np.all(error <= np.resize(bound, got.size))), f"{what}: off by {error.max()}"

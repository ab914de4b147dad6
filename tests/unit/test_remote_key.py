"""Keys as bytes: whatever comes, it is a key or a UsageError."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rdmatx
from rdmatx import errors


@pytest.fixture(scope="module")
def key() -> bytes:
    with (
        rdmatx.Context(devices=["soft0", "soft0"]) as context,
        context.register(bytearray(100), access="rw") as region,
    ):
        return bytes(region.key())


def parsed(data: bytes) -> None:
    with contextlib.suppress(errors.UsageError):
        assert bytes(rdmatx.RemoteKey.from_bytes(data)) == data


@given(st.binary(max_size=120))
def test_any_bytes(data: bytes) -> None:
    parsed(data)


@given(st.data())
def test_damaged_keys_are_refused(key: bytes, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(key) - 1))
    changed = data.draw(st.integers(1, 255))
    damaged = bytearray(key)
    damaged[place] ^= changed
    with pytest.raises(errors.UsageError):
        rdmatx.RemoteKey.from_bytes(bytes(damaged))
    parsed(key[:place])
    parsed(key + bytes(damaged[:place]))

"""What a peer may do with registered memory, whatever its key claims: the device of the owner decides."""

from __future__ import annotations

import struct
from contextlib import ExitStack

import pytest

import rdmatx
from rdmatx import errors
from rdmatx.verbs import WorkCompletionStatus
from tests.launch import Rank, launch
from tests.multiprocess.conftest import PATIENCE, Pair

BYTES = 8192
# As docs/wire-protocol.md lays a key out, and its checksum, which is no secret.
KEY = struct.Struct("<4sHHQQBI")


def forged(
    key: rdmatx.RemoteKey,
    *,
    access: int | None = None,
    address: int = 0,
    number: int | None = None,
) -> rdmatx.RemoteKey:
    """A key with other access bits, moved by `address` bytes, of another number; well formed."""
    magic, version, bits, start, length, count, secret = KEY.unpack(bytes(key)[: KEY.size])
    body = KEY.pack(
        magic,
        version,
        bits if access is None else access,
        start + address,
        length,
        count,
        secret if number is None else number,
    )
    checksum = 2166136261
    for byte in body:
        checksum = (checksum ^ byte) * 16777619 & 0xFFFFFFFF
    return rdmatx.RemoteKey.from_bytes(body + struct.pack("<I", checksum))


def refused(error: pytest.ExceptionInfo[errors.CompletionError]) -> None:
    assert error.value.status == WorkCompletionStatus.REMOTE_ACCESS_ERROR
    assert "access" in str(error.value)


def attempt(connection: rdmatx.Connection, what: str, key: rdmatx.RemoteKey) -> None:
    if what.startswith("write"):
        connection.write(b"\xaa" * BYTES, key)
    else:
        connection.read(bytearray(BYTES), key)


def attempts(key: rdmatx.RemoteKey, access: str) -> dict[str, rdmatx.RemoteKey]:
    """Keys that say more than the region's owner gave away."""
    found = {
        "read before it": forged(key, access=7, address=-1),
        "read behind it": forged(key, access=7, address=1),
        "write before it": forged(key, access=7, address=-4096),
        "write behind it": forged(key, access=7, address=BYTES - 1),
        "read with a number near by": forged(key, access=7, number=number_of(key) + 1),
        "write with a number near by": forged(key, access=7, number=number_of(key) ^ 0x100),
        "write with no number": forged(key, access=7, number=0),
    }
    if "w" not in access:
        found["write"] = forged(key, access=7)
    if "r" not in access:
        found["read"] = forged(key, access=7)
    return found


def number_of(key: rdmatx.RemoteKey) -> int:
    return int(KEY.unpack(bytes(key)[: KEY.size])[6])


def owner(rank: Rank, provider: str, device: str | None, access: str) -> None:
    """Gives keys away, and watches that nothing happens which it did not allow."""
    memory = bytearray(b"\x55" * BYTES)
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        context.listen() as listener,
        context.register(memory, access=access) as region,
        ExitStack() as peers,
    ):
        rank.send(1, (listener.address, bytes(region.key())))
        # A bystander of the same context: it lives through all of it.
        bystander = peers.enter_context(listener.accept())
        for _ in range(rank.receive(1)):
            with listener.accept() as victim, pytest.raises(errors.Error) as caught:
                victim.recv(bytearray(1))
            assert isinstance(caught.value, errors.PeerLostError | errors.CompletionError)
            del caught
            assert memory == b"\x55" * BYTES
            bystander.send(b"still here")
        assert bystander.recv(bytearray(4)) == 4


def attacker(rank: Rank, provider: str, device: str | None, access: str) -> None:
    address, data = rank.receive(0)
    key = rdmatx.RemoteKey.from_bytes(data)
    assert key.access == access
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE) as context,
        context.connect(address) as bystander,
    ):
        wanted = attempts(key, access)
        rank.send(0, len(wanted))
        for name, fake in wanted.items():
            with context.connect(address) as connection:
                with pytest.raises(errors.CompletionError) as caught:
                    attempt(connection, name, fake)
                refused(caught)
                del caught
                bystander.recv(bytearray(10))
        bystander.send(b"done")


def break_in(rank: Rank, provider: str, device: str | None, access: str) -> bool:
    (owner if rank.index == 0 else attacker)(rank, provider, device, access)
    return True


@pytest.mark.parametrize("access", ["r", "w", "rw", ""])
def test_a_forged_key_opens_nothing(provider: str, device_name: str | None, access: str) -> None:
    """Access bits, bounds or number altered: the owner's device refuses, and only that connection ends."""
    assert launch(break_in, provider, device_name, access, timeout=90.0) == [True, True]


@pytest.mark.parametrize("access", ["r", "w", "a", "rw", "rwa", ""])
def test_access_is_shown(pair: Pair, access: str) -> None:
    with pair.context.register(bytearray(64), access=access) as region:
        key = region.key()
        assert region.access == key.access == access
        assert f'access "{access}"' in repr(key)
        assert rdmatx.RemoteKey.from_bytes(bytes(key)).access == access


@pytest.mark.parametrize("operation", ["write", "read"])
def test_a_key_of_another_context_is_useless(
    pair: Pair, provider: str, device_name: str | None, operation: str
) -> None:
    """A context is a protection domain: its keys open nothing over another one's connections."""
    memory = bytearray(b"\x55" * BYTES)
    with (
        rdmatx.Context(device_name, provider, timeout=PATIENCE) as other,
        other.register(memory, access="rw") as region,
        other.listen() as listener,
        pair.context.connect(listener.address) as near,
        listener.accept() as far,
    ):
        key = region.key()
        # Over its own context's connection it serves.
        near.write(b"\x66" * BYTES, key)
        assert memory == b"\x66" * BYTES
        with pytest.raises(errors.CompletionError) as caught:
            attempt(pair.near, operation, key)
        refused(caught)
        del caught
        assert memory == b"\x66" * BYTES
        near.send(b"fine")
        assert far.recv(bytearray(4)) == 4


def test_the_key_of_a_closed_region_is_dead(pair: Pair) -> None:
    """Also where other memory is registered in its place right away."""
    memory = bytearray(b"\x55" * BYTES)
    region = pair.context.register(memory, access="rw")
    key = region.key()
    pair.near.write(b"\x66" * BYTES, key)
    region.close()
    with pair.context.register(memory, access="r") as again:
        assert bytes(again.key()) != bytes(key)
        with pytest.raises(errors.CompletionError) as caught:
            pair.near.write(b"\xaa" * BYTES, key)
        refused(caught)
        del caught
        assert memory == b"\x66" * BYTES

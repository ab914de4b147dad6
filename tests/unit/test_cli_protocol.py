"""The records of a file transfer: what is well formed comes through, nothing else does."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdmatx.cli.errors import CommandError
from rdmatx.cli.transfer import protocol
from rdmatx.cli.transfer.protocol import (
    LARGEST,
    PROTOCOL,
    RECORD_BYTES,
    VERSION,
    Channel,
    Chunk,
    Failed,
    FileEntry,
    Finish,
    Free,
    Goodbye,
    Hello,
    ProtocolError,
    Ready,
    Record,
    Stored,
    check_hello,
    decode,
    encode,
)

RECORDS: list[Record] = [
    Hello(PROTOCOL, VERSION, 2, 5 << 32),
    FileEntry("model.safetensors", 0),
    FileEntry("\udcff raw byte", LARGEST),
    Ready("00ff", 8, 1 << 23),
    Chunk(0, 1),
    Free(7),
    Finish("ab" * 32),
    Stored("ab" * 32),
    Failed("no space"),
    Goodbye(),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_a_record_survives_the_way(record: Record) -> None:
    assert decode(encode(record)) == record


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"GET / HTTP/1.1\r\n",
        b"\xff\xfe",
        b"[]",
        b"1",
        b"{}",
        b'{"record": "Unknown"}',
        b'{"record": ["Free"], "slot": 1}',
        b'{"record": "Free"}',
        b'{"record": "Free", "slot": 1, "more": 2}',
        b'{"record": "Free", "slot": "1"}',
        b'{"record": "Free", "slot": true}',
        b'{"record": "Free", "slot": 1.0}',
        b'{"record": "Free", "slot": -1}',
        b'{"record": "Free", "slot": 9223372036854775808}',
        b'{"record": "Finish", "sha256": null}',
        b"[" * RECORD_BYTES,
    ],
)
def test_what_is_not_well_formed_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@given(st.binary(max_size=200))
def test_random_bytes_never_raise_anything_else(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode(data)


@given(
    st.dictionaries(
        st.sampled_from(["record", "slot", "bytes", "name", "reason"]),
        st.one_of(st.none(), st.integers(), st.sampled_from(["Chunk", "Free", "", "x\udcff"])),
    )
)
def test_random_objects_are_records_or_protocol_errors(fields: dict[str, Any]) -> None:
    with contextlib.suppress(ProtocolError):
        decode(json.dumps(fields).encode())


def test_another_version_is_told_in_words() -> None:
    check_hello(Hello(PROTOCOL, VERSION, 1, 1))
    with pytest.raises(ProtocolError, match=r"version 99 .* same version of rdmatx"):
        check_hello(Hello(PROTOCOL, 99, 1, 1))
    with pytest.raises(ProtocolError, match="does not speak"):
        check_hello(Hello("something else", VERSION, 1, 1))


class Loop:
    """Stands for a connection: what is sent is what is received."""

    def __init__(self) -> None:
        self.queue: list[bytes] = []

    def send(self, data: bytes, *, timeout: float) -> None:
        assert timeout > 0
        self.queue.append(data)

    def recv(self, buffer: bytearray, *, timeout: float) -> int:
        assert timeout > 0
        data = self.queue.pop(0)
        buffer[: len(data)] = data
        return len(data)


def make_channel() -> Channel:
    return Channel(Loop(), 1.0)  # type: ignore[arg-type]


def test_channel_gives_only_what_is_due() -> None:
    channel = make_channel()
    channel.send(Free(1))
    assert channel.receive(Free, Stored) == Free(1)
    channel.send(Free(1))
    with pytest.raises(ProtocolError, match="a Free where Stored was due"):
        channel.receive(Stored)


def test_the_other_sides_failure_is_an_error_with_its_reason() -> None:
    channel = make_channel()
    channel.report_failure("no space left on the receiver")
    with pytest.raises(CommandError, match="gave up: no space left on the receiver"):
        channel.receive(Ready)


def test_the_longest_reason_fits_a_record() -> None:
    channel = make_channel()
    channel.report_failure("\udcff" * 5000)
    with pytest.raises(CommandError, match="gave up"):
        channel.receive(protocol.Ready)

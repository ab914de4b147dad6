"""What the commands print and read: sizes, tables, addresses, names from outside."""

from __future__ import annotations

import argparse
import json

import pytest

from rdmatx.cli.errors import CommandError, describe
from rdmatx.cli.options import listen_address, parse_address
from rdmatx.cli.output import (
    emit,
    format_bytes,
    format_size,
    format_table,
    parse_count,
    parse_seconds,
    parse_size,
    parse_sizes,
    printable,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [("0", 0), ("8", 8), ("64K", 65536), ("64k", 65536), ("1M", 1 << 20), ("2GiB", 2 << 30)],
)
def test_sizes_are_powers_of_1024(text: str, count: int) -> None:
    assert parse_size(text) == count


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5M", "1X", "1 0"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="is no size"):
        parse_size(text)


def test_list_of_sizes() -> None:
    assert parse_sizes("8,64K,1M") == [8, 65536, 1 << 20]


@pytest.mark.parametrize("text", ["0", "-1", "x", "nan", "inf"])
def test_seconds_are_positive(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="seconds"):
        parse_seconds(text)


@pytest.mark.parametrize("text", ["0", "-3", "2.5", "x"])
def test_counts_start_at_one(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
        parse_count(text)


def test_sizes_for_people() -> None:
    assert format_bytes(0) == "0 B"
    assert format_bytes(999) == "999 B"
    assert format_bytes(90_868_376) == "90.9 MB"
    assert format_bytes(5e15) == "5000.0 TB"
    assert [format_size(n) for n in (0, 8, 4096, 5000, 64 << 20)] == ["0", "8", "4K", "5000", "64M"]


def test_table_aligns_numbers_to_the_right() -> None:
    table = format_table(["name", "GB/s"], [["a", "9.5"], ["longer", "10.25"]])
    assert table.splitlines() == ["name     GB/s", "a         9.5", "longer  10.25"]


def test_names_from_outside_cannot_steer_the_terminal() -> None:
    assert printable("weights\x1b[2J.bin") == "weights\\x1b[2J.bin"
    assert printable("modèle.safetensors") == "modèle.safetensors"


def test_json_is_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"name": "a\nb", "bytes": 1})
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line) == {"name": "a\nb", "bytes": 1}


@pytest.mark.parametrize("text", ["127.0.0.1:7471", "node1:1", "[::1]:65535"])
def test_addresses(text: str) -> None:
    assert parse_address(text, needs_port=True) == text


@pytest.mark.parametrize(
    "text", ["", "host", ":80", "host:", "host:x", "host:65536", "::1:5", "h:0"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_address(text, needs_port=True)


def test_a_listener_may_leave_the_port_open() -> None:
    assert listen_address("127.0.0.1") == "127.0.0.1:0"
    assert listen_address("[::1]") == "[::1]:0"
    assert listen_address("0.0.0.0:0") == "0.0.0.0:0"
    with pytest.raises(argparse.ArgumentTypeError, match="HOST:PORT"):
        listen_address("host:")


def test_errors_are_sentences() -> None:
    assert describe(FileNotFoundError(2, "No such file or directory", "x")) == (
        "No such file or directory: 'x'"
    )
    assert describe(CommandError("the reason")) == "the reason"
    assert describe(RuntimeError()) == "RuntimeError"
    assert describe(KeyboardInterrupt()) == "it was interrupted"

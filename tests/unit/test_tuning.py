"""The table of algorithms: read, written, measured by `rdmatx tune`, and rank 0's for all ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rdmatx import _C, errors, tuning
from rdmatx.cli import tune
from tests.launch import TIME_SCALE

LINES: tuning.Table = [
    ("all_reduce", 2, 8192, "direct", 0),
    ("all_reduce", 2, 1 << 62, "ring", 1 << 20),
    ("broadcast", 4, 65536, "tree", 0),
]


def test_a_table_comes_back_as_it_was() -> None:
    assert tuning.from_bytes(tuning.to_bytes(LINES), "it") == LINES
    assert tuning.from_bytes(tuning.to_bytes([]), "it") == []


def test_lines_are_read_in_order_of_bytes() -> None:
    assert tuning.from_bytes(tuning.to_bytes(LINES[::-1]), "it") == LINES


def test_no_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RDMATX_TUNING", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert tuning.load() == []
    (tmp_path / "rdmatx").mkdir()
    (tmp_path / "rdmatx" / "tuning.json").write_bytes(tuning.to_bytes(LINES))
    assert tuning.load() == LINES
    monkeypatch.setenv("RDMATX_TUNING", str(tmp_path / "none"))
    with pytest.raises(errors.UsageError, match="cannot be read"):
        tuning.load()


def _document(**changes: Any) -> bytes:
    line = dict(zip(tuning._FIELDS, LINES[0], strict=True))
    return json.dumps({"version": 1, "lines": [{**line, **changes}]}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 2, "lines": []}',
        b'{"version": 1, "lines": [{}]}',
        b'{"version": 1, "lines": [7]}',
        b"\xff\xfe",
        _document(world=0),
        _document(max_bytes=-1),
        _document(max_bytes="many"),
        _document(algorithm=3),
        _document(chunk_bytes=1 << 64),
    ],
)
def test_what_is_no_table(data: bytes) -> None:
    with pytest.raises(errors.UsageError, match=r"this file is no table(.|\n)*rdmatx tune"):
        tuning.from_bytes(data, "this file")


def test_stretches_of_one_algorithm_are_one_line() -> None:
    best = [("direct", 1), ("direct", 1), ("ring", 1), ("ring", 2)]
    assert tune._merged("all_reduce", 3, [1024, 4096, 16384, 65536], best) == [
        ("all_reduce", 3, 8192, "direct", 1),
        ("all_reduce", 3, 32768, "ring", 1),
        ("all_reduce", 3, tune.UNBOUNDED, "ring", 2),
    ]


def test_lines_of_other_worlds_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "table.json"
    tune._write(path, LINES[:2], 2)
    tune._write(path, LINES[2:], 4)
    assert tuning.from_bytes(path.read_bytes(), "it") == LINES
    newer: tuning.Table = [("all_reduce", 2, 1 << 62, "direct", 0)]
    tune._write(path, newer, 2)
    assert tuning.from_bytes(path.read_bytes(), "it") == [*newer, LINES[2]]
    assert [entry.name for entry in path.parent.iterdir()] == ["table.json"]


@pytest.mark.soft_only
def test_tune(tmp_path: Path, provider: str) -> None:
    path = tmp_path / "table.json"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in ("RANK", "WORLD_SIZE", "RDMATX_TUNING")
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "rdmatx", "tune", "--ranks", "2", "--max-size", "4K"),
            *("--seconds", "0.001", "--json", "--out", str(path)),
        ],
        env={**environment, "RDMATX_PROVIDER": provider},
        capture_output=True,
        text=True,
        timeout=50 * TIME_SCALE,
    )
    assert done.returncode == 0, done.stderr
    measured = [json.loads(line) for line in done.stdout.splitlines()]
    for collective in tune.COLLECTIVES:
        tried = {m["algorithm"] for m in measured if m["collective"] == collective}
        assert tried == set(_C.collective_algorithms(collective))
    assert all(m["time_us"] > 0 and m["world"] == 2 for m in measured)
    table = tuning.from_bytes(path.read_bytes(), "it")
    assert {line[0] for line in table} == set(tune.COLLECTIVES)
    assert all(line[1] == 2 for line in table)

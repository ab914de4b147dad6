"""The examples run, as they stand, in the order a reader meets them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch import ROOT, TIME_SCALE

EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
LAST_LINES = {
    "01_two_processes.py": "HELLO OVER RDMA",
    "02_one_sided.py": "one-sided",
    "03_asyncio.py": "60 blocks came, and 60 were counted",
}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_example(example: Path, provider: str) -> None:
    done = subprocess.run(
        [sys.executable, str(example)],
        env={**os.environ, "RDMATX_PROVIDER": provider, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=50 * TIME_SCALE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert LAST_LINES[example.name] in done.stdout

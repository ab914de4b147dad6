"""The programs of the README, run as they stand there: only the port is another."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys

import pytest

from tests.launch import ROOT, TIME_SCALE


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def programs() -> list[str]:
    """The Python blocks of the README, with a port that is free now."""
    port = free_port()
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    return [block.replace("127.0.0.1:7471", f"127.0.0.1:{port}") for block in blocks]


@pytest.mark.soft
def test_the_two_programs_talk() -> None:
    pytest.importorskip("numpy")
    one, other, _ = programs()
    first = subprocess.Popen(
        [sys.executable, "-c", one], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        # The README starts the listener first; a peer that comes too early is refused at once.
        retry = f"""
import time, rdmatx
program = {other!r}
until = time.monotonic() + {20 * TIME_SCALE}
while True:
    try:
        exec(program, {{}})
        break
    except rdmatx.errors.PeerLostError:
        if time.monotonic() > until:
            raise
        time.sleep(0.1)
"""
        second = subprocess.run(
            [sys.executable, "-c", retry], cwd=ROOT, timeout=40 * TIME_SCALE, check=False
        )
        output, _ = first.communicate(timeout=40 * TIME_SCALE)
    finally:
        first.kill()
        first.wait()
    assert (first.returncode, second.returncode) == (0, 0)
    assert output.splitlines() == ["4000000 1.0", "b'hello'"]


@pytest.mark.soft
def test_the_group() -> None:
    """As three processes that torchrun starts."""
    pytest.importorskip("numpy")
    environment = {
        **os.environ,
        "WORLD_SIZE": "3",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "RDMATX_PROVIDER": "soft",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", programs()[2]],
            cwd=ROOT,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(3)
    ]
    try:
        outputs = [rank.communicate(timeout=40 * TIME_SCALE)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0, 0, 0]
    assert outputs == ["3.0\n"] * 3

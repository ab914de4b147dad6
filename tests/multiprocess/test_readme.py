"""The two programs of the README, run as they stand there: only the port is another."""

from __future__ import annotations

import re
import socket
import subprocess
import sys

import pytest

from tests.launch import ROOT, TIME_SCALE


def programs() -> list[str]:
    """The Python blocks of the README, with a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    return [block.replace("127.0.0.1:7471", f"127.0.0.1:{port}") for block in blocks]


@pytest.mark.soft
def test_the_two_programs_talk() -> None:
    pytest.importorskip("numpy")
    one, other = programs()
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

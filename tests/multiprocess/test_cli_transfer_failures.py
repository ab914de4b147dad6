"""`rdmatx send` and `rdmatx recv` when something goes wrong: both say why, nothing half stays."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from tests.launch import TIME_SCALE
from tests.multiprocess.cli_processes import (
    MIB,
    SMALL_WINDOW,
    Background,
    Receiving,
    make_file,
    run,
    sha256,
)

# Runs `pause()` in the third chunk: prints "half" and sleeps until the test kills the process.
PAUSE = """
import time
chunks = []
def pause():
    chunks.append(1)
    if len(chunks) == 3:
        print("half", flush=True)
        time.sleep(600)
"""
PAUSING_SENDER = (
    PAUSE
    + """
from rdmatx.cli.transfer.sender import Sender
land = Sender._land_oldest
Sender._land_oldest = lambda self: (pause(), land(self))[1]
"""
)
PAUSING_RECEIVER = (
    PAUSE
    + """
from rdmatx.cli.transfer.receiver import Receiver
check = Receiver._check_chunk
Receiver._check_chunk = lambda self, *rest: (pause(), check(self, *rest))[1]
"""
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_no_space_is_known_before_anything_is_sent(
    tmp_path: Path, out: Path, provider: str
) -> None:
    patch = (
        "from rdmatx.cli.transfer.storage import Folder\nFolder.free_bytes = lambda self: 1000\n"
    )
    path = make_file(tmp_path / "a", MIB)
    with Receiving(out, provider, "--once", patch=patch) as receiver:
        sent = run("send", path, receiver.address, "--provider", provider)
        status, _, errors = receiver.finish()
    assert (sent.returncode, status) == (1, 1)
    for text in (sent.stderr, errors):
        assert "no space for 1.0 MB" in text
    assert os.listdir(out) == []


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, out: Path, provider: str) -> None:
    patch = """
import errno
from rdmatx.cli.transfer.storage import IncomingFile
write = IncomingFile.write
def full(self, offset, piece):
    if offset >= 1 << 20:
        raise OSError(errno.ENOSPC, "No space left on device")
    write(self, offset, piece)
IncomingFile.write = full
"""
    path = make_file(tmp_path / "a", 4 * MIB)
    with Receiving(out, provider, "--once", *SMALL_WINDOW, patch=patch) as receiver:
        sent = run("send", path, receiver.address, "--provider", provider)
        status, _, errors = receiver.finish()
    assert (sent.returncode, status) == (1, 1)
    assert "the other side gave up: No space left on device" in sent.stderr
    assert errors == "rdmatx: No space left on device\n"
    assert os.listdir(out) == []


def test_damage_on_the_way_is_seen_and_not_kept(tmp_path: Path, out: Path, provider: str) -> None:
    patch = """
from rdmatx.cli.transfer import receiver
ready = receiver.Window.slot
def flipped(self, index, count):
    view = ready(self, index, count)
    view[count // 2] ^= 1
    return view
receiver.Window.slot = flipped
"""
    path = make_file(tmp_path / "a", MIB)
    with Receiving(out, provider, "--once", patch=patch) as receiver:
        sent = run("send", path, receiver.address, "--provider", provider)
        status, _, errors = receiver.finish()
    assert (sent.returncode, status) == (1, 1)
    for text in (sent.stderr, errors):
        assert "arrived damaged and was not kept" in text
        assert sha256(path) in text
    assert os.listdir(out) == []


def test_another_version_is_refused_on_both_sides(tmp_path: Path, out: Path, provider: str) -> None:
    patch = "from rdmatx.cli.transfer import sender\nsender.VERSION = 99\n"
    path = make_file(tmp_path / "a", 1)
    with Receiving(out, provider, "--once") as receiver:
        sent = run("send", path, receiver.address, "--provider", provider, patch=patch)
        status, _, errors = receiver.finish()
    assert (sent.returncode, status) == (1, 1)
    for text in (sent.stderr, errors):
        assert "use the same version of rdmatx on both sides" in text


def test_a_stranger_at_the_port_disturbs_nobody(tmp_path: Path, out: Path, provider: str) -> None:
    path = make_file(tmp_path / "a", MIB)
    with Receiving(out, provider, "--once") as receiver:
        host, port = receiver.address.split(":")
        with socket.create_connection((host, int(port)), timeout=10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        sent = run("send", path, receiver.address, "--provider", provider)
        assert (sent.returncode, receiver.finish()[0]) == (0, 0)
    assert (out / "a").read_bytes() == path.read_bytes()


def test_one_failed_sender_does_not_end_the_receiver(
    tmp_path: Path, out: Path, provider: str
) -> None:
    path = make_file(tmp_path / "a", MIB)
    make_file(out / "b", 1)
    other = make_file(tmp_path / "b", MIB)
    with Receiving(out, provider, "--count", 2) as receiver:
        assert run("send", other, receiver.address, "--provider", provider).returncode == 1
        assert run("send", path, receiver.address, "--provider", provider).returncode == 0
        status, _, errors = receiver.finish()
    assert status == 1
    assert "b exists already" in errors
    assert "1 of 2 senders failed" in errors


def test_a_sender_that_is_killed_leaves_no_partial_file(
    tmp_path: Path, out: Path, provider: str
) -> None:
    path = make_file(tmp_path / "a", 4 * MIB)
    with (
        Receiving(out, provider, "--once", *SMALL_WINDOW) as receiver,
        Background(
            "send", path, receiver.address, "--provider", provider, patch=PAUSING_SENDER
        ) as sender,
    ):
        assert sender.line() == "half\n"
        sender.process.kill()
        status, output, errors = receiver.finish()
    assert (status, output) == (1, "")
    assert errors.startswith("rdmatx: ")
    assert "Traceback" not in errors
    assert os.listdir(out) == []


def test_a_receiver_that_is_killed_ends_the_sender(
    tmp_path: Path, out: Path, provider: str
) -> None:
    path = make_file(tmp_path / "a", 4 * MIB)
    words = ("--once", *SMALL_WINDOW)
    with (
        Receiving(out, provider, *words, patch=PAUSING_RECEIVER) as receiver,
        Background("send", path, receiver.address, "--provider", provider, "--json") as sender,
    ):
        assert receiver.line() == "half\n"
        receiver.process.kill()
        status, output, errors = sender.finish()
    assert (status, output) == (1, "")
    assert errors.startswith("rdmatx: ")
    assert "Traceback" not in errors
    assert os.listdir(out) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_receiver_that_is_told_to_end_cleans_up(
    tmp_path: Path, out: Path, provider: str, number: signal.Signals
) -> None:
    path = make_file(tmp_path / "a", 4 * MIB)
    with (
        Receiving(out, provider, "--once", *SMALL_WINDOW) as receiver,
        Background(
            "send", path, receiver.address, "--provider", provider, patch=PAUSING_SENDER
        ) as sender,
    ):
        assert sender.line() == "half\n"
        receiver.process.send_signal(number)
        status, _, errors = receiver.finish()
    assert status == 128 + number
    assert errors.startswith("rdmatx: ")
    assert errors.count("\n") == 1
    assert os.listdir(out) == []


def test_ctrl_c_ends_a_receiver_that_waits(out: Path, provider: str) -> None:
    with Receiving(out, provider) as receiver:
        receiver.process.send_signal(signal.SIGINT)
        status, _, errors = receiver.finish()
    assert (status, errors) == (130, "rdmatx: interrupted\n")


def test_a_silent_receiver_is_given_up(tmp_path: Path, out: Path, provider: str) -> None:
    path = make_file(tmp_path / "a", 4 * MIB)
    words = ("--provider", provider, "--timeout", 2 * TIME_SCALE)
    with (
        Receiving(out, provider, "--once", *SMALL_WINDOW, patch=PAUSING_RECEIVER) as receiver,
        Background("send", path, receiver.address, *words) as sender,
    ):
        assert receiver.line() == "half\n"
        status, _, errors = sender.finish()
    assert status == 1
    assert errors.splitlines()[-1].startswith("rdmatx: ")

"""`rdmatx send` and `rdmatx recv` between two processes: what arrives, and what happens when not."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from tests.multiprocess.cli_processes import (
    MIB,
    SMALL_WINDOW,
    Background,
    Receiving,
    make_file,
    run,
    sha256,
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def test_files_of_all_sizes_arrive_verified(tmp_path: Path, out: Path, provider: str) -> None:
    sizes = (0, 1, 65535, 65536, 65537, 524288, 3 * MIB + 17)
    files = [make_file(tmp_path / "in" / f"file-{size}", size) for size in sizes]
    with Receiving(out, provider, "--once", *SMALL_WINDOW) as receiver:
        sent = run("send", *files, receiver.address, "--provider", provider, "--json")
        assert (sent.returncode, sent.stderr) == (0, "")
        status, output, errors = receiver.finish()
    assert (status, errors) == (0, "")
    expected = [
        {"name": path.name, "bytes": size, "sha256": sha256(path)}
        for path, size in zip(files, sizes, strict=True)
    ]
    for text in (sent.stdout, output):
        record = json.loads(text)
        assert record["files"] == expected
        assert record["bytes"] == sum(sizes)
        assert record["verified"] is True
        assert record["provider"] == provider
        assert record["device"]
    assert sorted(os.listdir(out)) == sorted(path.name for path in files)
    for path in files:
        assert (out / path.name).read_bytes() == path.read_bytes()


def test_people_read_names_speed_and_digest(tmp_path: Path, out: Path, provider: str) -> None:
    path = make_file(tmp_path / "weights.bin", MIB)
    with Background(
        *("recv", "--listen", "127.0.0.1:0", "--out", out, "--provider", provider, "--once")
    ) as receiver:
        first = receiver.line()
        assert first.startswith("listening on 127.0.0.1:")
        sent = run("send", path, first.split()[2], "--provider", provider)
        status, output, errors = receiver.finish()
    assert (sent.returncode, status) == (0, 0)
    for text in (sent.stdout, output):
        assert sha256(path) in text
        assert "1.0 MB" in text
        assert "GB/s" in text
    assert "weights.bin: 1.0 MB" in sent.stderr
    assert "weights.bin: 1.0 MB" in errors


def test_a_receiver_serves_one_sender_after_the_other(
    tmp_path: Path, out: Path, provider: str
) -> None:
    with Receiving(out, provider, "--count", 2, *SMALL_WINDOW) as receiver:
        for name in ("first", "second"):
            path = make_file(tmp_path / name, MIB)
            assert run("send", path, receiver.address, "--provider", provider).returncode == 0
        status, output, _ = receiver.finish()
    assert status == 0
    names = [json.loads(line)["files"][0]["name"] for line in output.splitlines()]
    assert names == ["first", "second"]


@pytest.mark.soft_only
@pytest.mark.timeout(240)
def test_more_than_four_gib_in_bounded_memory(tmp_path: Path, out: Path, provider: str) -> None:
    size = (4 << 30) + 4097
    space = os.statvfs(tmp_path)
    if space.f_bavail * space.f_frsize < 2 * size:
        pytest.skip("not enough disk for a file of 4 GiB")
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size - 5)
        file.write(b"last!")
    # The sizes of the two processes are far below the file's.
    with (
        Receiving(out, provider, "--once") as receiver,
        Background("send", path, receiver.address, "--provider", provider, "--json") as sender,
    ):
        peak = 0
        while sender.process.poll() is None:
            for process in (sender.process, receiver.process):
                peak = max(peak, anonymous_bytes(process.pid))
            signal.sigtimedwait([], 0.05)
        status, output, errors = sender.finish()
        assert (status, errors) == (0, "")
        assert receiver.finish()[0] == 0
    assert json.loads(output)["bytes"] == size
    assert (out / "large").stat().st_size == size
    with (out / "large").open("rb") as file:
        file.seek(size - 5)
        assert file.read() == b"last!"
    (out / "large").unlink()
    assert peak < 512 * MIB


def anonymous_bytes(pid: int) -> int:
    """Memory of a process that is no file's (shared memory counts: the window is there)."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    found = dict(line.split(":", 1) for line in lines)
    kilobytes = (int(found.get(name, "0").split()[0]) for name in ("RssAnon", "RssShmem"))
    return sum(kilobytes) << 10


def test_a_missing_file_is_found_before_anyone_is_connected_to(tmp_path: Path) -> None:
    present = make_file(tmp_path / "present", 1)
    sent = run("send", present, tmp_path / "absent", "127.0.0.1:1")
    assert sent.returncode == 1
    assert sent.stderr == (
        f"rdmatx: cannot send {tmp_path}/absent: No such file or directory: '{tmp_path}/absent'\n"
    )


def test_only_regular_files_are_sent(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, kind in ((tmp_path, "a folder"), (tmp_path / "pipe", "no regular file")):
        sent = run("send", path, "127.0.0.1:1")
        assert sent.returncode == 1
        assert f"it is {kind}" in sent.stderr


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    files = [make_file(tmp_path / folder / "same", 1) for folder in ("a", "b")]
    sent = run("send", *files, "127.0.0.1:1")
    assert sent.returncode == 1
    assert "would both be stored as same" in sent.stderr


def test_what_is_no_address_is_explained(tmp_path: Path) -> None:
    sent = run("send", make_file(tmp_path / "a", 1), tmp_path / "b")
    assert sent.returncode == 1
    assert "HOST:PORT" in sent.stderr


def test_nobody_listens(tmp_path: Path, provider: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    path = make_file(tmp_path / "a", 1)
    sent = run("send", path, address, "--provider", provider, "--timeout", 10)
    assert sent.returncode == 1
    assert address in sent.stderr
    assert sent.stderr.count("\n") == 1


def test_nobody_sends(out: Path, provider: str) -> None:
    with Receiving(out, provider, "--once", "--timeout", "0.2") as receiver:
        status, _, errors = receiver.finish()
    assert (status, errors) == (1, "rdmatx: no sender came within 0.2 s\n")


def test_a_file_that_exists_is_kept_unless_told(tmp_path: Path, out: Path, provider: str) -> None:
    path = make_file(tmp_path / "a", MIB)
    make_file(out / "a", 10)
    before = (out / "a").read_bytes()
    with Receiving(out, provider, "--once") as receiver:
        sent = run("send", path, receiver.address, "--provider", provider)
        status, _, errors = receiver.finish()
    assert (sent.returncode, status) == (1, 1)
    for text in (sent.stderr, errors):
        assert "a exists already" in text
        assert "--overwrite" in text
    assert (out / "a").read_bytes() == before
    with Receiving(out, provider, "--once", "--overwrite") as receiver:
        sent = run("send", path, receiver.address, "--provider", provider)
        assert (sent.returncode, receiver.finish()[0]) == (0, 0)
    assert (out / "a").read_bytes() == path.read_bytes()
    assert os.listdir(out) == ["a"]


def test_hashes_that_lag_behind_lose_nothing(tmp_path: Path, out: Path, provider: str) -> None:
    patch = """
import hashlib, time
from rdmatx.cli.transfer import digest
class Slow:
    def __init__(self):
        self.hash = hashlib.sha256()
        self.hexdigest = self.hash.hexdigest
    def update(self, piece):
        time.sleep(0.005)
        self.hash.update(piece)
digest.new_hash = Slow
"""
    path = make_file(tmp_path / "a", 3 * MIB)
    with Receiving(out, provider, "--once", *SMALL_WINDOW, patch=patch) as receiver:
        sent = run("send", path, receiver.address, "--provider", provider, patch=patch)
        status, _, errors = receiver.finish()
    assert (sent.returncode, status, errors) == (0, 0, "")
    assert (out / "a").read_bytes() == path.read_bytes()


def test_files_get_the_permissions_of_new_files(tmp_path: Path, out: Path, provider: str) -> None:
    path = make_file(tmp_path / "a", 1)
    with Receiving(out, provider, "--once", umask=0o027) as receiver:
        assert run("send", path, receiver.address, "--provider", provider).returncode == 0
        assert receiver.finish()[0] == 0
    assert stat.S_IMODE((out / "a").stat().st_mode) == 0o640

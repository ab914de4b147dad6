"""`rdmatx lab run` with its kernel: what a command inside sees, and what stays of it outside."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from rdmatx import lab
from rdmatx.lab.boot import PACKAGE_PARENT
from tests.lanes import lane_missing
from tests.rxe.lab_command import (
    DROP,
    LAB,
    environment,
    lab_processes,
    require_lab,
    run_lab,
    start_lab,
    wait_for_line,
)

pytestmark = pytest.mark.rxe

require_lab()


@pytest.mark.parametrize(
    ("script", "status"),
    [("true", 0), ("exit 7", 7), ("exit 255", 255), ("kill -9 $$", 137), ("kill $$", 143)],
)
def test_exit_status_is_the_commands(folder: Path, script: str, status: int) -> None:
    assert run_lab(folder, "sh", "-c", script).returncode == status


def test_missing_and_unusable_commands(folder: Path) -> None:
    done = run_lab(folder, "no-such-program-here")
    assert done.returncode == 127
    assert b"no-such-program-here" in done.stderr
    assert run_lab(folder, "/etc/hosts").returncode == 126


def test_streams_are_told_apart_and_unchanged(folder: Path) -> None:
    done = run_lab(folder, "sh", "-c", r"printf 'a\nb\r\n\0\004'; printf 'e\n' >&2")
    assert done.stdout == b"a\nb\r\n\0\x04"
    assert done.stderr == b"e\n"


def test_a_mebibyte_of_any_bytes_arrives(folder: Path) -> None:
    data = random.Random(1).randbytes(1 << 20)
    (folder / "data").write_bytes(data)
    done = run_lab(folder, "cat", "data")
    assert hashlib.sha256(done.stdout).digest() == hashlib.sha256(data).digest()


def test_stdin_is_passed_on_and_ends(folder: Path) -> None:
    data = random.Random(2).randbytes(300_000)
    done = run_lab(folder, "sha256sum", stdin=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_stdin_that_nobody_reads_does_no_harm(folder: Path) -> None:
    done = run_lab(folder, "sh", "-c", "exec 0<&-; sleep 0.2; echo done", stdin=b"x" * 1_000_000)
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_a_reader_that_leaves_ends_the_command(folder: Path) -> None:
    process = start_lab(folder, "yes")
    assert wait_for_line(process) == b"y\n"
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(30) == 128 + signal.SIGPIPE
    assert process.stderr is not None
    process.stderr.close()


def test_children_that_live_on_hold_nothing_up(folder: Path) -> None:
    done = run_lab(folder, "sh", "-c", "yes > /dev/null & sleep 60 & echo done")
    assert (done.returncode, done.stdout) == (0, b"done\n")


def test_a_terminal_is_a_terminal_inside(folder: Path) -> None:
    ours, theirs = os.openpty()
    script = (
        "test -t 1 || echo pipe; test -t 2 && echo terminal >&2; test -t 0 || echo no input >&2"
    )
    done = subprocess.run(
        [*LAB, "--", "sh", "-c", script],
        cwd=folder,
        env=environment(),
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
        timeout=50,
    )
    os.close(theirs)
    assert done.stdout == b"pipe\n"
    assert os.read(ours, 4096) == b"terminal\r\nno input\r\n"
    os.close(ours)


def test_interactive_keys_reach_the_command(folder: Path) -> None:
    ours, theirs = os.openpty()
    script = "trap 'echo caught' INT; echo up; until read line; do :; done; echo got=$line; exit 4"
    process = subprocess.Popen(
        [*LAB, "--tty", "--", "sh", "-c", script],
        cwd=folder,
        env=environment(),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    seen = b""
    for expected, keys in ((b"up", b"\x03"), (b"caught", b"typed\n"), (b"got=typed", b"")):
        while expected not in seen:
            seen += os.read(ours, 4096)
        os.write(ours, keys)
    assert process.wait(20) == 4
    os.close(ours)


def test_folder_environment_and_names(folder: Path) -> None:
    script = 'pwd; echo "$LAB_TEST"; echo "$RDMATX_LAB"; hostname; getent hosts rdmatx-lab'
    done = run_lab(folder, "sh", "-c", script, LAB_TEST=" two  words\t")
    lines = done.stdout.decode().split("\n")
    assert lines[:4] == [str(folder), " two  words\t", "1", "rdmatx-lab"]
    assert "rdmatx-lab" in lines[4]


def test_only_writes_to_the_working_folder_stay(folder: Path) -> None:
    other = folder / "other"
    own = folder / "own"
    other.mkdir()
    own.mkdir()
    (other / "old").write_text("old")
    script = (
        "echo new > kept; echo x > ../other/old; echo x > ../other/new; rm -f ../other/old; "
        "echo x > /tmp/rdmatx-lab-inside && echo x > /dev/shm/inside && cat ../other/new"
    )
    done = run_lab(own, "sh", "-c", script)
    assert (done.returncode, done.stdout) == (0, b"x\n")
    assert (own / "kept").read_text() == "new\n"
    assert [(path.name, path.read_text()) for path in other.iterdir()] == [("old", "old")]
    assert not Path("/tmp/rdmatx-lab-inside").exists()
    assert not Path("/dev/shm/inside").exists()


def test_the_device_is_there_and_active(folder: Path) -> None:
    script = (
        "cat /sys/class/infiniband/rxe0/ports/1/state; rdma link; ls -l /dev/infiniband/uverbs0; "
        "cat /sys/class/infiniband/rxe0/ports/1/gids/1; grep 'cpu MHz' /proc/cpuinfo; nproc"
    )
    text = run_lab(folder, "sh", "-c", script).stdout.decode()
    assert "4: ACTIVE" in text
    assert "link rxe0/1 state ACTIVE" in text
    assert "crw-rw-rw-" in text
    assert "0000:0000:0000:0000:0000:ffff:7f00:0001" in text
    assert text.count("cpu MHz") == 1
    assert text.endswith("\n1\n")


def test_interrupt_goes_to_the_command(folder: Path) -> None:
    process = start_lab(
        folder, "sh", "-c", "trap 'echo caught; exit 9' INT; echo up; sleep 30 & wait"
    )
    assert wait_for_line(process) == b"up\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (9, b"caught\n")


def test_second_interrupt_ends_the_kernel(folder: Path) -> None:
    process = start_lab(folder, "sh", "-c", "trap '' INT; echo up; sleep 30")
    assert wait_for_line(process) == b"up\n"
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == 130


def test_termination_ends_everything_and_keeps_files(folder: Path) -> None:
    process = start_lab(folder, "sh", "-c", "echo data > file; echo up; exec sleep 30")
    assert wait_for_line(process) == b"up\n"
    process.terminate()
    process.communicate(timeout=10)
    assert process.returncode == 143
    assert (folder / "file").read_text() == "data\n"


def test_timeout_is_124(folder: Path) -> None:
    started = time.monotonic()
    done = run_lab(folder, "sh", "-c", "echo up; sleep 60", options=("--timeout", "4"))
    assert (done.returncode, done.stdout) == (124, b"up\n")
    assert 3.5 < time.monotonic() - started < 12


def test_nothing_is_left_behind(folder: Path) -> None:
    temporary = folder / "t"
    temporary.mkdir()
    done = run_lab(folder, "true", TMPDIR=str(temporary))
    assert done.returncode == 0
    assert list(temporary.iterdir()) == []
    assert lab_processes(temporary) == []


def test_nothing_is_left_behind_by_a_killed_runner(folder: Path) -> None:
    temporary = folder / "t"
    temporary.mkdir()
    process = subprocess.Popen(
        [*LAB, "--", "sh", "-c", "echo up; while :; do :; done"],
        cwd=folder,
        env=environment(TMPDIR=str(temporary)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert wait_for_line(process) == b"up\n"
    assert lab_processes(temporary)
    process.kill()
    process.communicate()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and (lab_processes(temporary) or list(temporary.iterdir())):
        time.sleep(0.05)
    assert lab_processes(temporary) == []
    assert list(temporary.iterdir()) == []


def test_two_at_once(folder: Path) -> None:
    runs = [
        start_lab(folder, "sh", "-c", f"sleep 1; echo {n} > f{n}; echo {n}; exit {n}")
        for n in (3, 4)
    ]
    for number, process in zip((3, 4), runs, strict=True):
        out, _ = process.communicate(timeout=40)
        assert (process.returncode, out) == (number, f"{number}\n".encode())
        assert (folder / f"f{number}").exists()


def test_data_moves_through_the_device(folder: Path) -> None:
    script = (
        "command -v ibv_rc_pingpong >/dev/null || { echo no tool; exit 0; }; "
        "ibv_rc_pingpong -e -d rxe0 -g 1 -c >/dev/null & sleep 0.5; "
        "ibv_rc_pingpong -e -d rxe0 -g 1 -c localhost && wait $!"
    )
    done = run_lab(folder, "sh", "-c", script)
    assert done.returncode == 0, done.stderr
    if b"no tool" in done.stdout:
        lane_missing("rxe", "ibv_rc_pingpong is not installed (package ibverbs-utils)")
    assert b"bytes in" in done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")
def test_another_user_with_little_lockable_memory(folder: Path) -> None:
    script = "id -u; id -G; ulimit -l; ibv_devinfo -d rxe0 >/dev/null && echo opened"
    tool = ("prlimit", "--memlock=65536:65536", *DROP, "sh", "-c", script)
    assert run_lab(folder, *tool).stdout.split() == [b"65534", b"65534", b"64", b"opened"]
    done = run_lab(folder, "sh", "-c", "id -u; echo x > mine", options=("--user", "65534"))
    assert done.stdout == b"65534\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can drop to another user")
def test_run_by_an_unprivileged_user(folder: Path) -> None:
    kernel = lab.status().kernel
    assert kernel is not None
    copy = folder / "linux"
    copy.write_bytes(kernel.read_bytes())
    copy.chmod(0o755)
    code = folder / "code"
    shutil.copytree(
        PACKAGE_PARENT / "rdmatx", code / "rdmatx", ignore=shutil.ignore_patterns("*.so*")
    )
    own = folder / "own"
    own.mkdir()
    os.chown(own, 65534, 65534)
    script = (
        "id -u; rdma link show rxe0/1; echo x > kept; echo y 2>/dev/null > /etc/x || echo denied"
    )
    done = subprocess.run(
        [*DROP, "/usr/bin/python3", *LAB[1:], "--", "sh", "-c", script],
        cwd=own,
        capture_output=True,
        check=False,
        timeout=50,
        env=environment(code, RDMATX_LAB_KERNEL=str(copy), HOME=str(own), TMPDIR="/tmp"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"65534\n")
    assert b"state ACTIVE" in done.stdout
    assert done.stdout.endswith(b"denied\n")
    assert (own / "kept").stat().st_uid == 65534

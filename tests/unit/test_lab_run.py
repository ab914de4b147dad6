"""What `rdmatx lab run` decides before a kernel boots: arguments, frames, specification."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rdmatx import lab
from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab import boot, cache, cli, frames, native, runner
from rdmatx.lab.options import Options


def parse(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    cli.configure(parser.add_subparsers(dest="command_name"))
    return parser.parse_args(["lab", *argv])


def test_command_line_of_run() -> None:
    args = parse("run", "--mem", "2G", "--timeout", "1.5", "--", "prog", "--mem", "x", "--", "y")
    assert (args.mem, args.timeout, args.native) == ("2G", 1.5, False)
    assert cli.given_command(args) == ["prog", "--mem", "x", "--", "y"]


def test_options_behind_the_command_are_the_commands() -> None:
    args = parse("run", "prog", "--native", "--timeout", "3")
    assert cli.given_command(args) == ["prog", "--native", "--timeout", "3"]
    assert not args.native
    assert args.timeout is None


def test_command_line_of_build() -> None:
    args = parse("build", "--source", "tree", "--force", "--json")
    assert (args.source, args.force, args.json) == (Path("tree"), True, True)


def test_build_prints_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel = tmp_path / "linux"
    kernel.write_text("")
    kernel.chmod(0o755)
    monkeypatch.setenv(cache.KERNEL_VARIABLE, str(kernel))
    assert cli.main(["build", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernel"] == str(kernel)


def test_lab_failures_exit_125_and_say_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(cache.KERNEL_VARIABLE, raising=False)
    monkeypatch.delenv("RDMATX_LAB", raising=False)
    assert cli.main(["run", "--", "true"]) == cli.LAB_FAILED
    assert "run `rdmatx lab build`" in capfd.readouterr().err
    assert cli.main(["run"]) == cli.LAB_FAILED
    assert "no command" in capfd.readouterr().err


def test_a_lab_in_the_lab_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMATX_LAB", "1")
    with pytest.raises(UsageError, match="already"):
        lab.run(["true"])


@pytest.mark.parametrize(
    ("text", "size"), [("4G", 4 << 30), ("512m", 512 << 20), ("1048576K", 1 << 30)]
)
def test_memory_sizes(text: str, size: int) -> None:
    assert boot.parse_memory(text) == size


@pytest.mark.parametrize("text", ["", "4T", "-1G", "much", "64M", "1.5G"])
def test_memory_that_makes_no_sense(text: str) -> None:
    with pytest.raises(UsageError):
        boot.parse_memory(text)


def test_memory_without_room_names_the_folders() -> None:
    with pytest.raises(UnavailableError, match=r"/dev/shm.*--mem"):
        boot.memory_folder(1 << 60)


@pytest.mark.parametrize("folder", ["/", "/dev", "/proc", "/sys/class"])
def test_system_folders_are_no_working_folders(folder: str) -> None:
    with pytest.raises(UsageError, match="--workdir"):
        boot.writable_folder(Path(folder))


def test_working_folder_is_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert boot.writable_folder(tmp_path / "link") == str(tmp_path.resolve() / "real")
    with pytest.raises(UsageError, match="not a folder"):
        boot.writable_folder(tmp_path / "missing")


def test_specification_carries_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RDMATX_LAB_TEST", "tab\there")
    monkeypatch.setenv("PATH", "/usr/bin")
    spec = runner.make_spec(["prog", "ü"], Options(workdir=tmp_path), 0)
    init = boot.write_guest(tmp_path, spec)
    told = json.loads((tmp_path / "spec.json").read_text())
    assert told["command"] == ["prog", "ü"]
    assert told["environment"]["RDMATX_LAB_TEST"] == "tab\there"
    assert told["environment"]["RDMATX_LAB"] == "1"
    assert told["environment"]["PATH"] == "/usr/bin:/usr/local/sbin:/usr/sbin:/sbin"
    assert told["uid"] == os.geteuid()
    assert told["workdir"] == str(tmp_path.resolve())
    assert "cpu MHz" in told["cpuinfo"]
    assert told["setup"][-1][:4] == ["rdma", "link", "add", "rxe0"]
    assert os.access(init, os.X_OK)


def test_another_user_has_no_groups_of_the_caller(tmp_path: Path) -> None:
    spec = runner.make_spec(["prog"], Options(workdir=tmp_path, user=65534), 0)
    assert (spec.uid, spec.gid, spec.groups) == (65534, 65534, [])


def test_kernel_command_line(tmp_path: Path) -> None:
    line = boot.kernel_command(
        Path("/k/linux"),
        memory=1 << 30,
        init=tmp_path / "init",
        folder=tmp_path,
        channel=7,
        network=["vec0:transport=fd,fd=9"],
    )
    assert line[0] == "/k/linux"
    assert {"mem=1024M", "ro", "ssl0=fd:7", f"uml_dir={tmp_path}/"} < set(line)
    assert line[-1] == "vec0:transport=fd,fd=9"


def test_frames_survive_any_cut() -> None:
    sent = [(frames.OUTPUT, b"a\r\n\0"), (frames.EXIT, b"\7"), (frames.READY, b"")]
    stream = b"".join(frames.encode(kind, payload) for kind, payload in sent)
    for size in range(1, len(stream) + 1):
        decoder = frames.Decoder()
        got = [
            frame
            for start in range(0, len(stream), size)
            for frame in decoder.feed(stream[start : start + size])
        ]
        assert got == sent


def test_broken_stream_is_an_error() -> None:
    with pytest.raises(ValueError, match="broken"):
        frames.Decoder().feed(b"O\xff\xff\xff\xff")


def test_native_without_a_device_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "SYSFS", tmp_path / "missing")
    with pytest.raises(UnavailableError, match="modprobe rdma_rxe"):
        lab.run(["true"], native=True)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 15)", 143),
        ("import time; time.sleep(30)", 124),
    ],
)
def test_native_exit_status(
    code: str, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(native, "SYSFS", tmp_path)
    timeout = 0.5 if status == 124 else None
    assert lab.run([sys.executable, "-c", code], native=True, timeout=timeout) == status


def test_native_command_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mlx5_0").mkdir()
    monkeypatch.setattr(native, "SYSFS", tmp_path)
    assert lab.run(["no-such-program-here"], native=True) == 127
    assert "no-such-program-here" in capfd.readouterr().err


def test_importing_the_lab_needs_no_extension() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import rdmatx.lab.cli, rdmatx.lab.guest; "
        "assert 'rdmatx._C' not in sys.modules and 'torch' not in sys.modules"
    )
    root = str(boot.PACKAGE_PARENT)
    subprocess.run([sys.executable, "-I", "-c", code, root], check=True)

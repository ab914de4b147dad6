"""The lab without a kernel: sources, options, cache, tools."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from rdmatx import lab
from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab import cache, kernel, source, tools


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(cache.KERNEL_VARIABLE, raising=False)
    return tmp_path / "rdmatx" / "lab"


def make_tree(folder: Path, version: tuple[int, int, int] = (6, 12, 9)) -> Path:
    (folder / "arch" / "um").mkdir(parents=True)
    names = ("VERSION", "PATCHLEVEL", "SUBLEVEL")
    lines = [f"{name} = {part}" for name, part in zip(names, version, strict=True)]
    (folder / "Makefile").write_text("\n".join([*lines, "EXTRAVERSION =", "NAME = Some Fish", ""]))
    return folder


def make_kernel(path: Path) -> Path:
    path.parent.mkdir(parents=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_fragment_has_what_makes_a_roce_device() -> None:
    options = cache.parse_fragment(cache.FRAGMENT.read_text())
    for name in ("RDMA_RXE", "INFINIBAND_USER_ACCESS", "HOSTFS", "OVERLAY_FS", "NET_SCH_NETEM"):
        assert options[f"CONFIG_{name}"] == "y"


def test_every_line_of_the_fragment_is_an_option_or_a_comment() -> None:
    for line in cache.FRAGMENT.read_text().splitlines():
        assert not line or line.startswith("#") or re.fullmatch(r"CONFIG_[A-Z0-9_]+=\S+", line)


def test_missing_options_are_named() -> None:
    made = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=2\n"
    wanted = "CONFIG_A=y\nCONFIG_B=y\nCONFIG_C=1\n"
    assert kernel.missing_options(wanted, made) == ["CONFIG_B=y", "CONFIG_C=1"]
    assert kernel.missing_options("CONFIG_A=y\n", made) == []


def test_fragment_hash_follows_options_and_not_comments() -> None:
    one = cache.fragment_hash("# a\nCONFIG_A=y\nCONFIG_B=y\n")
    assert one == cache.fragment_hash("CONFIG_B=y\n\n# b\nCONFIG_A=y\n")
    assert one != cache.fragment_hash("CONFIG_A=y\n")


def test_cache_follows_xdg(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache.cache_root() == empty_cache
    assert cache.kernel_path("6.12.9") == empty_cache / f"6.12.9-{cache.fragment_hash()}" / "linux"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.cache_root() == Path.home() / ".cache" / "rdmatx" / "lab"


def test_newest_kernel_of_the_present_options_is_found(empty_cache: Path) -> None:
    assert cache.find_kernel() is None
    make_kernel(empty_cache / "6.99.1-0123456789ab" / "linux")
    assert cache.find_kernel() is None
    make_kernel(cache.kernel_path("6.9.12"))
    newest = make_kernel(cache.kernel_path("6.12.3"))
    assert cache.find_kernel() == newest


def test_named_kernel_comes_first(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = make_kernel(empty_cache / "elsewhere" / "linux")
    monkeypatch.setenv(cache.KERNEL_VARIABLE, str(named))
    assert cache.find_kernel() == named
    assert lab.build() == named
    monkeypatch.setenv(cache.KERNEL_VARIABLE, str(empty_cache / "nothing"))
    with pytest.raises(UnavailableError, match=cache.KERNEL_VARIABLE):
        cache.find_kernel()


def test_build_returns_what_is_cached(empty_cache: Path, tmp_path: Path) -> None:
    built = make_kernel(cache.kernel_path("6.12.9"))
    assert lab.build() == built
    assert lab.build(make_tree(tmp_path / "tree")) == built


def test_all_missing_tools_are_named_at_once(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "BUILD_PACKAGES", {"no-such-a": "pkg-a", "no-such-b": "pkg-b"})
    with pytest.raises(UnavailableError, match=r"no-such-a, no-such-b.*install -y pkg-a pkg-b"):
        lab.build()


def test_too_little_disk_is_said_before_anything_is_fetched(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "BUILD_PACKAGES", {})
    monkeypatch.setattr(tools, "HEADER_PACKAGES", {})
    monkeypatch.setattr(kernel, "DISK_BYTES", 1 << 60)
    with pytest.raises(UnavailableError, match="XDG_CACHE_HOME"):
        lab.build()
    assert not list(empty_cache.glob(".build-*"))


def test_a_second_build_waits_for_the_first(empty_cache: Path) -> None:
    code = (
        "import sys; from rdmatx.lab.cache import build_lock\n"
        "with build_lock(lambda: None): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    waited: list[bool] = []

    def let_go() -> None:
        waited.append(holder.poll() is None)
        holder.communicate()

    with cache.build_lock(let_go):
        assert waited == [True]
    with cache.build_lock(lambda: waited.append(False)):
        assert waited == [True]


def test_failed_make_names_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = ["sh", "-c", "echo '  CC      a.o'; echo 'a.c: wrong'; exit 2"]
    seen: list[tuple[str, str]] = []
    with (
        log.open("w") as lines,
        pytest.raises(UnavailableError, match=f"(?s)exited 2.*{log}.*a.c: wrong"),
    ):
        kernel._make(command, lines.fileno(), lambda *step: seen.append(step), log)
    assert seen == [("compile", "1 files")]


def test_register_room_is_widened_once(tmp_path: Path) -> None:
    listing = tmp_path / "arch" / "x86" / "um" / "user-offsets.s"
    listing.parent.mkdir(parents=True)
    listing.write_text('.ascii "->HOST_FP_SIZE $337 2696 / 8"\n.ascii "->HOST_BX $5 RBX"\n')
    kernel.widen_registers(tmp_path)
    once = listing.read_text()
    assert once == '.ascii "->HOST_FP_SIZE $1536 2696 / 8"\n.ascii "->HOST_BX $5 RBX"\n'
    kernel.widen_registers(tmp_path)
    assert listing.read_text() == once


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["linux-source-6.1", "linux-source-6.12"], "linux-source-6.12"),
        (["linux-source-6.12", "linux-source-6.16"], "linux-source-6.12"),
        (["linux-source-6.8.0", "linux-source-6.11.0"], "linux-source-6.11.0"),
        (["linux-source-5.15.0"], None),
        ([], None),
    ],
)
def test_package_tested_with_is_preferred(names: list[str], chosen: str | None) -> None:
    assert source.choose_package(names) == chosen


def test_source_tree_is_recognised(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    assert source.given_source(tree) == source.Source(tree, True)
    assert source.tree_version(tree) == "6.12.9"
    with pytest.raises(UsageError, match="arch/um"):
        source.given_source(tmp_path)
    with pytest.raises(UsageError, match=r"6\.1 or newer"):
        source.given_source(make_tree(tmp_path / "old", (5, 15, 1)))
    with pytest.raises(UsageError, match="neither"):
        source.given_source(tmp_path / "missing.tar.xz")


def test_tarball_that_is_no_kernel_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with tarfile.open(tmp_path / "some.tar.gz", "w:gz") as tar:
        tar.add(tmp_path / "file", "top/file")
    with pytest.raises(UsageError, match="no kernel source"):
        source.unpack(tmp_path / "some.tar.gz", tmp_path / "tree")


def test_unpacking_leaves_out_what_is_not_read(tmp_path: Path) -> None:
    top = make_tree(tmp_path / "linux")
    for name in ("sound/core/a.c", "sound/core/Kconfig", "Documentation/Kconfig", "net/a.c"):
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text("x")
    with tarfile.open(tmp_path / "linux.tar.xz", "w:xz") as tar:
        tar.add(top, "linux-source-6.12")
    source.unpack(tmp_path / "linux.tar.xz", tmp_path / "tree")
    assert (tmp_path / "tree" / "sound" / "core" / "Kconfig").exists()
    assert (tmp_path / "tree" / "Documentation" / "Kconfig").exists()
    assert (tmp_path / "tree" / "net" / "a.c").exists()
    assert not (tmp_path / "tree" / "sound" / "core" / "a.c").exists()


def test_other_machines_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools.platform, "machine", lambda: "aarch64")
    with pytest.raises(UnavailableError, match=r"x86-64.*aarch64"):
        lab.build()
    status = lab.status()
    assert not status.ready
    assert len(status.problems) == len(status.remedies)


def test_status_names_problem_and_remedy(
    empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "RUN_PACKAGES", {"no-such-tool": "its-package"})
    status = lab.status()
    assert not status.built
    assert not status.ready
    assert (
        dict(zip(status.problems, status.remedies, strict=True)).items()
        >= {
            "the lab's kernel is not built": "rdmatx lab build",
            "missing programs: no-such-tool": tools.install_command(
                {"no-such-tool": "its-package"}
            ),
        }.items()
    )

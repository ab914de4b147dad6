"""Finds the kernel's source: a folder, a tarball, or the distribution's package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rdmatx.errors import UnavailableError, UsageError
from rdmatx.lab.cache import version_key
from rdmatx.lab.tools import FETCH_PACKAGES, require

TESTED = (6, 12)
OLDEST = (6, 1)
TAR_SUFFIX = re.compile(r"\.tar(\.(xz|bz2|gz|zst))?$|\.tgz$")

DECOMPRESSORS = {  # beside xz, which Debian's source needs and every build asks for
    ".bz2": {"bzip2": "bzip2"},
    ".zst": {"zstd": "zstd"},
}

# Bulky, and not read by a build without sound, graphics or network cards. Kconfig files and
# Makefiles of those folders stay, because the whole tree's are read.
UNNEEDED = (
    "*/Documentation/*.rst",
    "*/Documentation/*.txt",
    "*/Documentation/*.yaml",
    "*.dts",
    "*.dtsi",
    "*/drivers/gpu/*.[ch]",
    "*/drivers/media/*.[ch]",
    "*/drivers/net/ethernet/*.[ch]",
    "*/drivers/net/wireless/*.[ch]",
    "*/sound/*.[ch]",
    "*/tools/perf/*",
    "*/tools/testing/*",
)


@dataclass(frozen=True)
class Source:
    """A kernel source that is on this machine: an unpacked tree, or a tarball of one."""

    path: Path
    is_tree: bool


def given_source(path: Path) -> Source:
    """The source a user names; raises ``UsageError`` where it is none."""
    if path.is_dir():
        if not (path / "arch" / "um").is_dir() or not (path / "Makefile").is_file():
            raise UsageError(f"{path} is no kernel source: it has no Makefile beside arch/um")
        tree_version(path)
        return Source(path.resolve(), True)
    if path.is_file() and TAR_SUFFIX.search(path.name):
        return Source(path.resolve(), False)
    raise UsageError(f"{path} is neither a kernel source folder nor a .tar.xz, .tar.gz or .tar.bz2")


def tree_version(tree: Path) -> str:
    """The version a kernel tree gives itself, as "6.12.9"; raises ``UsageError``."""
    text = (tree / "Makefile").read_text(errors="replace")
    found: dict[str, str] = dict(
        re.findall(r"^(VERSION|PATCHLEVEL|SUBLEVEL|EXTRAVERSION)[ \t]*=[ \t]*(\S*)", text, re.M)
    )
    if "VERSION" not in found or "PATCHLEVEL" not in found:
        raise UsageError(f"{tree}/Makefile names no kernel version")
    numbers = ("VERSION", "PATCHLEVEL", "SUBLEVEL")
    version = ".".join(found[key] for key in numbers if key in found)
    if version_key(version) < OLDEST:
        raise UsageError(f"{tree} is Linux {version}; the lab needs 6.1 or newer")
    return version + found.get("EXTRAVERSION", "")


def choose_package(names: list[str]) -> str | None:
    """Of ``linux-source-X.Y…`` package names: the release tested with, else the newest.

    Versions before 6.1 do not count; None where nothing is left.
    """
    versions = {name: version_key(name.removeprefix("linux-source-")) for name in names}
    usable = [name for name, version in versions.items() if version[:2] >= OLDEST]
    return max(
        usable, key=lambda name: (versions[name][:2] == TESTED, versions[name]), default=None
    )


def fetch_source(folder: Path) -> Source:
    """Downloads the distribution's kernel source into ``folder``; needs no root.

    Raises ``UnavailableError`` where there is no such package or no way to it.
    """
    require(FETCH_PACKAGES, "fetching the kernel source (or give one with --source)")
    listed = _output(["apt-cache", "pkgnames", "linux-source-"], folder).split()
    names = [name for name in listed if re.fullmatch(r"linux-source-\d+(\.\d+)+", name)]
    package = choose_package(names)
    if package is None:
        raise UnavailableError(
            "apt knows no package linux-source-6.1 or newer: run `apt-get update` as root, or "
            "give a kernel source of kernel.org with --source"
        )
    _output(["apt-get", "download", "-q", package], folder)
    archive = next(folder.glob("*.deb"))
    _output(["dpkg-deb", "-x", str(archive), "."], folder)
    archive.unlink()
    tarballs = [
        path
        for path in (folder / "usr" / "src").rglob("linux-source-*")
        if path.is_file() and TAR_SUFFIX.search(path.name)
    ]
    if not tarballs:
        raise UnavailableError(f"the package {package} holds no tarball of a kernel source")
    return Source(tarballs[0], False)


def unpack(tarball: Path, tree: Path) -> None:
    """Unpacks what the build reads of ``tarball`` into the new folder ``tree``."""
    packages = DECOMPRESSORS.get(tarball.suffix, {})
    require(packages, f"unpacking {tarball.name}")
    tree.mkdir()
    excludes = [f"--exclude={pattern}" for pattern in UNNEEDED]
    command = [
        "tar",
        "-xf",
        str(tarball),
        "-C",
        str(tree),
        "--strip-components=1",
        "--wildcards",
        "--no-same-owner",
        *excludes,
    ]
    _output(command, tree)
    if not (tree / "arch" / "um").is_dir():
        raise UsageError(f"{tarball} holds no kernel source: there is no arch/um in it")


def _output(command: list[str], folder: Path) -> str:
    """What ``command`` prints; raises ``UnavailableError`` with its last words otherwise."""
    program = shutil.which(command[0]) or command[0]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=environment,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        words = "\n".join((done.stderr or done.stdout).strip().splitlines()[-5:])
        raise UnavailableError(f"`{' '.join(command[:3])}` failed ({done.returncode}): {words}")
    return done.stdout

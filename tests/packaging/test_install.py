"""The package as users get it: a source distribution, built into a fresh virtual environment without
torch."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

# Variables of the build in this folder: an installation elsewhere must not need them.
BUILD_VARIABLES = ("RDMATX_BUILD_DIR", "RDMATX_CMAKE_ARGS", "PYTHONPATH")
LEFTOVERS = (
    *(".git", ".venv", ".cache", ".*_cache", "__pycache__", "*.so", "*.so.*", "*.egg-info"),
    *("build", "dist", "demo-out"),
)
IN_SOURCE = {
    "CMakeLists.txt",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "setup.py",
    "csrc/sources.cmake",
    "csrc/verbs/table.hpp",
    "csrc/bindings/module.cpp",
    "rdmatx/py.typed",
    "rdmatx/_C.pyi",
    "rdmatx/lab/kernel.config",
}
INSTALLED = {"__init__.py", "_C.pyi", "librdmatx_core.so", "lab/kernel.config", "py.typed"}


@dataclass(frozen=True)
class Installation:
    python: Path
    package: Path

    def run(self, *arguments: str, cwd: Path) -> str:
        done = subprocess.run(
            [self.python, *arguments],
            cwd=cwd,
            env=clean_environment(),
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in BUILD_VARIABLES}


def checked(command: list[str], **options: object) -> str:
    done = subprocess.run(
        command,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=1500,
        **options,  # type: ignore[call-overload]
    )
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution, made from the sources alone: no leftovers of a build in this folder."""
    folder = tmp_path_factory.mktemp("source")
    tree = folder / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*LEFTOVERS), symlinks=True)
    script = (
        "import sys; from setuptools import build_meta; print(build_meta.build_sdist(sys.argv[1]))"
    )
    checked([sys.executable, "-c", script, str(folder)], cwd=tree)
    (made,) = folder.glob("rdmatx-*.tar.gz")
    return made


@pytest.fixture(scope="module")
def installation(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    folder = tmp_path_factory.mktemp("installed")
    checked([sys.executable, "-m", "venv", str(folder / "venv")])
    python = folder / "venv" / "bin" / "python"
    checked(
        [str(python), "-m", "pip", "--disable-pip-version-check", "install", str(source)],
        cwd=folder,
    )
    script = "import rdmatx; print(rdmatx.__file__)"
    found = subprocess.run(
        [python, "-c", script], cwd=folder, env=clean_environment(), capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr
    return Installation(python, Path(found.stdout.strip()).parent)


def test_source_distribution_is_whole(source: Path) -> None:
    with tarfile.open(source) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= IN_SOURCE
    ours = [*(ROOT / "csrc").rglob("*.[ch]pp"), *(ROOT / "rdmatx").rglob("*.py")]
    assert names >= {str(path.relative_to(ROOT)) for path in ours}


def test_installed_files(installation: Installation) -> None:
    """The core beside the extension, the stub and its marker, and what the lab needs; nothing of the
    tests."""
    names = {
        str(path.relative_to(installation.package)) for path in installation.package.rglob("*")
    }
    assert names >= INSTALLED
    assert any(name.startswith("_C.") and name.endswith(".so") for name in names)
    assert not (installation.package.parent / "tests").exists()


def test_works_without_torch_and_numpy(installation: Installation, tmp_path: Path) -> None:
    script = """
import importlib.util, rdmatx
assert importlib.util.find_spec("torch") is None and importlib.util.find_spec("numpy") is None
with rdmatx.Context(provider="soft") as context, context.listen("127.0.0.1:0") as listener:
    with context.connect(listener.address) as connection, listener.accept(timeout=10.0) as peer:
        request = peer.irecv(memory := bytearray(5))
        connection.send(b"hello")
        request.wait(timeout=10.0)
        print(memory.decode())
"""
    assert installation.run("-c", script, cwd=tmp_path) == "hello\n"


def test_command_line(installation: Installation, tmp_path: Path) -> None:
    """`rdmatx devices --json` works from the installed entry point and names a device that would be
    chosen."""
    entry = installation.python.with_name("rdmatx")
    done = subprocess.run(
        [entry, "devices", "--json"],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


def test_version_is_one(installation: Installation, tmp_path: Path) -> None:
    """The package, its metadata and its core tell the same version."""
    script = """
import importlib.metadata, rdmatx
from rdmatx import _C
print(rdmatx.__version__ == importlib.metadata.version("rdmatx") == _C.version())
"""
    assert installation.run("-c", script, cwd=tmp_path) == "True\n"

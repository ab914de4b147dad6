"""Starts `rdmatx lab run` as a user does, for the tests of the lab itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from rdmatx import lab
from rdmatx.lab.boot import PACKAGE_PARENT
from tests.lanes import lane_missing

DROP = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
LAB = [sys.executable, "-m", "rdmatx.lab", "run", "--mem", "512M"]


def require_lab() -> None:
    """At the head of a module whose tests boot kernels: skips it where none can be booted."""
    if os.environ.get("RDMATX_LAB"):
        lane_missing("lab", "these tests boot kernels themselves, and this is the inside of one")
    if not lab.status().ready:
        lane_missing("rxe", "; ".join(lab.status().problems))


def environment(package: Path = PACKAGE_PARENT, **more: str) -> dict[str, str]:
    found = os.pathsep.join([str(package), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    return {**os.environ, "PYTHONPATH": found.rstrip(os.pathsep), **more}


def run_lab(
    folder: Path,
    *command: str,
    options: tuple[str, ...] = (),
    stdin: bytes | None = None,
    **more: str,
) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*LAB, *options, "--", *command],
        cwd=folder,
        env=environment(**more),
        capture_output=True,
        input=stdin,
        check=False,
        timeout=50,
    )


def start_lab(
    folder: Path, *command: str, options: tuple[str, ...] = (), **more: str
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*LAB, *options, "--", *command],
        cwd=folder,
        env=environment(**more),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def lab_processes(folder: Path) -> list[str]:
    """Command lines of kernels and keepers whose run folder lies in ``folder``."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/rdmatx-lab-" in line:
            found.append(line)
    return found


def wait_for_line(process: subprocess.Popen[bytes]) -> bytes:
    assert process.stdout is not None
    return process.stdout.readline()

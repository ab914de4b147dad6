"""The C++ tests, one item a program, as built into build/native (or RDMATX_BUILD_DIR) by `make
test-cpp`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.lanes import lane_missing
from tests.launch import ROOT, TIME_SCALE

BUILD = Path(os.environ.get("RDMATX_BUILD_DIR", ROOT / "build" / "native"))


def programs() -> dict[str, list[str]]:
    """The tests that CTest knows in the build folder, with their commands; empty where there is no such
    build."""
    ctest = shutil.which("ctest")
    if ctest is None or not (BUILD / "CTestTestfile.cmake").exists():
        return {}
    listing = subprocess.run(
        [ctest, "--show-only=json-v1"], cwd=BUILD, capture_output=True, text=True, check=True
    )
    tests = json.loads(listing.stdout)["tests"]
    return {test["name"]: test["command"] for test in tests if "command" in test}


PROGRAMS = programs()


@pytest.mark.cpp
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", list(PROGRAMS) or ["none"])
def test_program(name: str) -> None:
    command = PROGRAMS.get(name)
    if command is None or not Path(command[0]).exists():
        lane_missing("cpp", f"the C++ tests are not built in {BUILD}: make test-cpp")
    done = subprocess.run(
        command, cwd=BUILD, capture_output=True, text=True, timeout=240 * TIME_SCALE
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}{done.stderr}"

"""What is collected here depends on the machine.

On a host (`--provider=soft`): test_in_lab.py, which runs the tests that need a device inside the lab, and the
tests of the lab itself. With a device (`--provider=system`, in the lab or on a host that has one): the tests
that need it, named test_*.py like any other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rxe.lab_items import LabModule

ON_THE_HOST = ("test_in_lab.py", "test_lab")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    name = collection_path.name
    if collection_path.parent != Path(__file__).parent or not name.startswith("test_"):
        return None
    on_the_host = name.startswith(ON_THE_HOST)
    return on_the_host == (config.getoption("--provider") == "system") or None


def pytest_pycollect_makemodule(
    module_path: Path, parent: pytest.Collector
) -> pytest.Module | None:
    if module_path.name == "test_in_lab.py":
        return LabModule.from_parent(parent, path=module_path)
    return None


@pytest.fixture
def folder() -> Iterator[Path]:
    """A working folder that another user may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="lab-test-", dir="/tmp") as name:
        Path(name).chmod(0o777)
        yield Path(name)

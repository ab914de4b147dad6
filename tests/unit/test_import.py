"""What `import rdmatx` does: nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import rdmatx
from tests.launch import ROOT, TIME_SCALE


def run_python(code: str, **environment: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=60 * TIME_SCALE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert not ran.stderr
    return ran.stdout


def test_loads_nothing() -> None:
    code = """if True:
        import os, sys, threading
        before, variables = set(sys.modules), dict(os.environ)
        import rdmatx
        loaded = set(sys.modules) - before
        for heavy in ("torch", "numpy", "rdmatx._C", "rdmatx.context", "rich", "asyncio"):
            assert heavy not in loaded, heavy
        maps = open("/proc/self/maps").read()
        for library in ("libibverbs", "librdmatx_core", "libcuda"):
            assert library not in maps, library
        assert threading.active_count() == 1 and dict(os.environ) == variables
        """
    run_python(code)


def test_the_core_loads_no_libibverbs() -> None:
    code = """if True:
        import rdmatx
        rdmatx.verbs.Device(provider="soft").close()
        assert "libibverbs" not in open("/proc/self/maps").read()
        import sys
        assert "torch" not in sys.modules and "numpy" not in sys.modules
        """
    run_python(code)


def test_works_without_libibverbs() -> None:
    code = """if True:
        import rdmatx
        report = rdmatx.system_report()
        assert report.state == "no_library", report
        print(report.reason)
        assert [device.provider for device in rdmatx.list_devices()] == ["soft"]
        """
    assert "/nonexistent/lib.so" in run_python(code, RDMATX_IBVERBS_LIB="/nonexistent/lib.so")


def test_names() -> None:
    assert set(rdmatx.__all__) <= set(dir(rdmatx))
    for name in rdmatx.__all__:
        assert getattr(rdmatx, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        rdmatx.nonsense  # noqa: B018


def test_versions_agree() -> None:
    from rdmatx import _C

    assert rdmatx.__version__ == _C.version()

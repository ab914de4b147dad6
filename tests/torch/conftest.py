"""The torch backend: PyTorch has to be there, and the extension built for it."""

from __future__ import annotations

import pytest

from tests.lanes import lane_missing


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent.name == "torch":
            item.add_marker(pytest.mark.torch)


@pytest.fixture(autouse=True)
def software(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks take the device of RDMATX_PROVIDER."""
    monkeypatch.setenv("RDMATX_PROVIDER", "soft")


@pytest.fixture(autouse=True, scope="package")
def backend() -> None:
    from rdmatx.errors import UnavailableError

    try:
        import rdmatx.torch  # noqa: F401
    except (ImportError, UnavailableError) as error:
        lane_missing("torch", str(error))

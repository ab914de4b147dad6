"""PyTorch: the `torch.distributed` backend named `rdmatx`.

    torch.distributed.init_process_group("rdmatx")

An installed rdmatx registers the backend by itself when torch is imported (an entry point of the group
`torch.backends`); `import rdmatx.torch` does so too. The extension is built for one release of PyTorch,
the one that was installed when rdmatx was: with another one, importing this package raises
`UnavailableError`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rdmatx.autoload import register_backend
from rdmatx.errors import UnavailableError

__all__ = ["create_backend", "register_backend"]

REBUILD = "pip install --no-build-isolation --force-reinstall --no-deps rdmatx[torch]"


def _load_extension() -> Any:
    """`rdmatx.torch._C`, if it was built for the torch there is."""
    installed = str(import_module("torch").__version__)
    stamp = Path(__file__).with_name("built_for.txt")
    if not stamp.exists() or find_spec("rdmatx.torch._C") is None:
        raise UnavailableError(
            "this rdmatx was installed without its backend for torch.distributed, since torch was not "
            f"there or not seen by the build; with torch {installed} installed, run: {REBUILD}"
        )
    built_for = stamp.read_text().strip()
    if built_for != installed:
        raise UnavailableError(
            f"the torch.distributed backend of this rdmatx was built for torch {built_for}, and torch "
            f"{installed} is installed: build it again with: {REBUILD}"
        )
    return import_module("rdmatx.torch._C")


_extension = _load_extension()

from rdmatx.torch.process_groups import create_backend  # noqa: E402

register_backend()

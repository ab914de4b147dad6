"""Makes the backend known to `torch.distributed`. Called by `import torch` itself, so it imports nothing."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

#: Device types whose tensors the backend takes.
DEVICES = ["cpu"]


def register_backend() -> None:
    """Registers the backend "rdmatx", once; what it takes to make one is imported when one is made.

    Never raises: whoever imports torch may not want rdmatx at all.
    """
    # Not there where torch was built without it.
    backends = getattr(sys.modules.get("torch.distributed"), "Backend", None)
    if backends is None or "rdmatx" in getattr(backends, "backend_list", ()):
        return
    backends.register_backend("rdmatx", _create_backend, extended_api=True, devices=DEVICES)


def _create_backend(options: Any, group_options: Any = None) -> Any:
    # By name: this module lies below rdmatx.torch, which imports torch.
    return import_module("rdmatx.torch").create_backend(options, group_options)

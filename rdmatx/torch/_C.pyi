"""The extension that makes a backend of a group; csrc/torch/module.cpp."""

from collections.abc import Callable
from typing import Any

class Backend:
    # `group` is what Group._capsule() gives; `split` is called with (store, rank, world, timeout in seconds),
    # `closed` once the group was closed.
    def __init__(
        self,
        group: Any,
        timeout: float,
        split: Callable[..., Any],
        closed: Callable[[], None],
    ) -> None: ...
    @property
    def options(self) -> Any: ...

"""What is measured: one operation, one mode, one size, one kind of memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

Operation = Literal["send", "write", "read"]
Mode = Literal["bw", "lat"]
Memory = Literal["ordinary", "empty"]

# Bytes to keep under way, and the least and most operations that may be.
_FLIGHT_BYTES = 4 << 20
_FEWEST_IN_FLIGHT = 2
_MOST_IN_FLIGHT = 64


@dataclass(frozen=True)
class Case:
    """One measurement. Travels to the workers as JSON.

    ``memory`` is the kind of the target's memory: "ordinary" (private pages) or "empty" (of
    ``rdmatx.empty``, which peers on one host map). ``huge`` asks for 2 MiB pages in private
    memory; without it they are 4 KiB, whatever the system's default. ``registered`` says that
    ours registers the memory once, and not anew for each operation.
    """

    op: Operation = "write"
    mode: Mode = "bw"
    bytes: int = 0
    memory: Memory = "ordinary"
    huge: bool = False
    registered: bool = True
    device: str | None = None
    provider: str = "auto"
    timeout: float = 60.0

    @property
    def window(self) -> int:
        """How many operations to keep under way: many small ones, few large ones."""
        fitting = _FLIGHT_BYTES // max(self.bytes, 1)
        return max(_FEWEST_IN_FLIGHT, min(_MOST_IN_FLIGHT, fitting))

    def of_size(self, count: int) -> Case:
        """The same with ``count`` bytes an operation."""
        return replace(self, bytes=count)

    def to_json(self) -> dict[str, Any]:
        """The case as an object, for ``Case(**object)``."""
        return asdict(self)

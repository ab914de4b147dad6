"""What sender and receiver say to each other: small typed records over a ``Connection``.

The order of a transfer (S is the sender, R the receiver)::

    S  Hello          which protocol and version, how many files, how many bytes in all
    S  FileEntry ...  name and size of each file
    R  Ready          the key of R's window of memory, cut into slots; or Failed
    per file:
      S  Chunk ...    "slot n holds the next so many bytes": S wrote them there, one-sided
      R  Free ...     "slot n may be written again"
      S  Finish       the SHA-256 of what was sent
      R  Stored       what arrived has that SHA-256 and the file stands under its name; or Failed
    S  Goodbye

Either side may say ``Failed`` with a reason at any time; both then close. A record is a JSON
object of at most ``RECORD_BYTES`` bytes, and its fields are checked before anyone uses them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from rdmatx.cli.errors import CommandError

if TYPE_CHECKING:
    from rdmatx import Connection

PROTOCOL = "rdmatx-files"
VERSION = 1
RECORD_BYTES = 16 << 10
# How long the end of a failed transfer may take.
FAREWELL_SECONDS = 3.0
# Above this nobody counts: 2^63 - 1, the largest offset of a file.
LARGEST = (1 << 63) - 1


@dataclass(frozen=True)
class Hello:
    """The first record, and the only one that versions to come may not change."""

    protocol: str
    version: int
    files: int
    bytes: int


@dataclass(frozen=True)
class FileEntry:
    """One file to come. ``name`` has no folder in it."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Ready:
    """The receiver's window: ``slots`` slots of ``slot_bytes`` each. ``key`` is hexadecimal."""

    key: str
    slots: int
    slot_bytes: int


@dataclass(frozen=True)
class Chunk:
    """The next ``bytes`` bytes of the file lie at the start of ``slot``."""

    slot: int
    bytes: int


@dataclass(frozen=True)
class Free:
    """``slot`` may be written again."""

    slot: int


@dataclass(frozen=True)
class Finish:
    """All chunks of the file were sent; together they have this SHA-256."""

    sha256: str


@dataclass(frozen=True)
class Stored:
    """The file arrived, has this SHA-256 and stands under its name."""

    sha256: str


@dataclass(frozen=True)
class Failed:
    """The side that says it gives up. ``reason`` is a sentence for the user."""

    reason: str


@dataclass(frozen=True)
class Goodbye:
    """The sender has seen the last ``Stored``."""


Record = Hello | FileEntry | Ready | Chunk | Free | Finish | Stored | Failed | Goodbye
_KINDS: dict[str, type[Record]] = {kind.__name__: kind for kind in typing.get_args(Record)}
_FIELD_TYPES = {kind: typing.get_type_hints(kind) for kind in _KINDS.values()}

R = TypeVar("R", bound=Record)
S = TypeVar("S", bound=Record)


class ProtocolError(CommandError):
    """The other side said something that has no place here."""


def encode(record: Record) -> bytes:
    """The record as it is sent."""
    fields = dataclasses.asdict(record)
    return json.dumps({"record": type(record).__name__, **fields}).encode("ascii")


def decode(data: bytes | bytearray | memoryview) -> Record:
    """Reads one record; anything else than a well-formed one is a ``ProtocolError``."""
    try:
        # The strings come from outside: a lone surrogate in a name is a byte that is not UTF-8.
        fields = json.loads(bytes(data).decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise ProtocolError("the other side does not speak rdmatx's file transfer") from error
    if not isinstance(fields, dict):
        raise ProtocolError("the other side does not speak rdmatx's file transfer")
    name = fields.pop("record", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None or set(fields) != set(_FIELD_TYPES[kind]):
        raise ProtocolError(
            "the other side sent a record that this version of rdmatx does not know: use the "
            "same version on both sides"
        )
    for field, wanted in _FIELD_TYPES[kind].items():
        _check_field(kind, field, wanted, fields[field])
    return kind(**fields)


def _check_field(kind: type[Record], field: str, wanted: type, value: Any) -> None:
    if type(value) is not wanted or (isinstance(value, int) and not 0 <= value <= LARGEST):
        raise ProtocolError(f"the other side sent a {kind.__name__} whose {field} makes no sense")


def check_hello(hello: Hello) -> None:
    """Raises where the other side speaks something else, or another version of it."""
    if hello.protocol != PROTOCOL:
        raise ProtocolError("the other side does not speak rdmatx's file transfer")
    if hello.version != VERSION:
        raise ProtocolError(
            f"the sender speaks version {hello.version} of the file transfer and this receiver "
            f"version {VERSION}: use the same version of rdmatx on both sides"
        )


class Channel:
    """Sends and receives records over one connection. One thread at a time.

    It owns its buffer, not the connection. ``timeout`` (seconds) bounds every wait; what the
    other side reports with ``Failed`` comes out of ``receive`` as a ``CommandError``.
    """

    def __init__(self, connection: Connection, timeout: float) -> None:
        self._connection = connection
        self._timeout = timeout
        self._buffer = bytearray(RECORD_BYTES)

    def send(self, record: Record) -> None:
        """Sends one record and waits until it is on its way."""
        self._connection.send(encode(record), timeout=self._timeout)

    @overload
    def receive(self, kind: type[R], /) -> R: ...

    @overload
    def receive(self, kind: type[R], other: type[S], /) -> R | S: ...

    def receive(self, *kinds: Any) -> Any:
        """Waits for a record of one of ``kinds``."""
        count = self._connection.recv(self._buffer, timeout=self._timeout)
        record = decode(memoryview(self._buffer)[:count])
        if isinstance(record, kinds):
            return record
        if isinstance(record, Failed):
            raise CommandError(f"the other side gave up: {record.reason}")
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ProtocolError(
            f"the other side sent a {type(record).__name__} where {expected} was due: "
            "use the same version of rdmatx on both sides"
        )

    def report_failure(self, reason: str) -> None:
        """Tells the other side why this one gives up, if it still listens."""
        # A reason may be long (it quotes paths); what does not fit a record is cut off.
        record = Failed(reason[:1000])
        with contextlib.suppress(Exception):
            self._connection.send(encode(record), timeout=min(self._timeout, FAREWELL_SECONDS))

    def await_end(self) -> None:
        """Waits a moment for the other side to close, and drops what it still says till then."""
        deadline = time.monotonic() + min(self._timeout, FAREWELL_SECONDS)
        with contextlib.suppress(Exception):
            while (left := deadline - time.monotonic()) > 0:
                self._connection.recv(self._buffer, timeout=left)

"""The errors of rdmatx.

Each is an `Error`, and also the built-in class that fits, so that `except OSError` or `except
TimeoutError` works too. All can be pickled. The messages say what was wrong and what to do about
it.
"""

from __future__ import annotations

import builtins
from typing import Any

__all__ = [
    "AuthenticationError",
    "ClosedError",
    "CompletionError",
    "CudaError",
    "Error",
    "PeerLostError",
    "SizeMismatchError",
    "TimeoutError",
    "UnavailableError",
    "UsageError",
    "VerbsError",
]


def _restore(kind: type[Error], message: str, attributes: dict[str, Any]) -> Error:
    error = kind(message)
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


class Error(Exception):
    """The base of them all."""

    #: The names of what an error carries beside its message.
    _carries: tuple[str, ...] = ()

    def __init__(self, message: str = "") -> None:
        super().__init__(message)
        self._message = message

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {name: getattr(self, name) for name in self._carries}
        return _restore, (type(self), self._message, {**self.__dict__, **attributes})


class UnavailableError(Error, RuntimeError):
    """No library, module, device or capability. The message holds the reason and the remedy."""


class UsageError(Error, ValueError):
    """A documented rule was broken."""


class SizeMismatchError(Error, ValueError):
    """A message does not fit the buffer it was to go to. Sizes in bytes."""

    def __init__(
        self, message: str = "", *, needed_bytes: int = 0, available_bytes: int = 0
    ) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes
        self.available_bytes = available_bytes


class ClosedError(Error, RuntimeError):
    """Used after `close()`."""


class VerbsError(Error, OSError):
    """A verb failed: `call` is its name ("ibv_reg_mr"), `errno` the reason."""

    _carries = ("errno",)

    def __init__(self, message: str = "", *, call: str = "", errno: int | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.errno = errno


class CudaError(Error, RuntimeError):
    """The CUDA driver failed: `call` is the function, `code` its result."""

    def __init__(self, message: str = "", *, call: str = "", code: int = 0) -> None:
        super().__init__(message)
        self.call = call
        self.code = code


class CompletionError(Error):
    """An operation failed on the wire.

    `status` is a `rdmatx.verbs.WorkCompletionStatus` as an integer, `vendor_error` the device's
    own code, `peer` and `operation` say what was going on; empty where it is not known.
    """

    def __init__(
        self,
        message: str = "",
        *,
        status: int = 0,
        vendor_error: int = 0,
        peer: str = "",
        operation: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.vendor_error = vendor_error
        self.peer = peer
        self.operation = operation


class PeerLostError(Error, ConnectionError):
    """The other side, `peer`, is gone."""

    def __init__(self, message: str = "", *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class AuthenticationError(Error, ConnectionError):
    """The secret of the other side, `peer`, is not ours."""

    def __init__(self, message: str = "", *, peer: str = "") -> None:
        super().__init__(message)
        self.peer = peer


class TimeoutError(Error, builtins.TimeoutError):
    """Nothing happened in `seconds`."""

    def __init__(
        self, message: str = "", *, peer: str = "", operation: str = "", seconds: float = 0.0
    ) -> None:
        super().__init__(message)
        self.peer = peer
        self.operation = operation
        self.seconds = seconds

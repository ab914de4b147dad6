"""How a command fails: with one clear sentence and an exit status, never with a traceback."""

from __future__ import annotations


class CommandError(Exception):
    """The command cannot do what was asked. The text is what the user reads."""


class Interrupted(BaseException):
    """A signal asks the command to end (SIGTERM, SIGHUP).

    Not an ``Exception``, as ``KeyboardInterrupt`` is none: only clean-up may stand in its way.
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.signal_number = signal_number


def describe(error: BaseException) -> str:
    """One sentence for the user, whatever was raised.

    An ``OSError`` of Python itself reads "No such file or directory: 'x'"; errors of rdmatx
    already are sentences.
    """
    if isinstance(error, KeyboardInterrupt | Interrupted):
        return "it was interrupted"
    if isinstance(error, OSError) and error.strerror and type(error).__module__ == "builtins":
        where = f": {error.filename!r}" if error.filename is not None else ""
        return f"{error.strerror}{where}"
    return str(error) or type(error).__name__

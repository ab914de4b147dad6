"""The entry point ``rdmatx``: reads the command line, runs one command, turns errors into words.

Exit status: 0 for success, 1 for failure, 2 for a command line that makes no sense, 130 after
Ctrl-C, 128 + n after signal n.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from rdmatx.cli.errors import CommandError, Interrupted, describe
from rdmatx.cli.output import note

# Command, its module (with `configure(parser)` and `execute(arguments)`), and what it does.
COMMANDS = {
    "devices": ("rdmatx.cli.devices", "list the devices, and which one would be chosen and why"),
    "doctor": ("rdmatx.cli.doctor", "say what is wrong with this machine for RDMA, and the remedy"),
    "topo": ("rdmatx.cli.topo", "print which NIC is near which GPU, and which is used for which"),
    "recv": ("rdmatx.cli.recv", "receive files that `rdmatx send` sends"),
    "send": ("rdmatx.cli.send", "send files to a waiting `rdmatx recv`"),
    "bench": ("rdmatx.cli.bench.command", "measure speed, alone or against others"),
    "tune": ("rdmatx.cli.tune", "measure which algorithm serves which collective here"),
    "lab": ("rdmatx.cli.lab", "run a command in a kernel that has a soft-RoCE device"),
}


class _Version(argparse.Action):
    """``--version``; the package is imported only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import rdmatx

        print(f"rdmatx {rdmatx.__version__}")
        parser.exit()


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The parser. Only the module of ``command`` is imported; all of them where it is ``None``."""
    parser = argparse.ArgumentParser(
        prog="rdmatx",
        description="Moves tensors and files between machines over RDMA.",
        epilog="`rdmatx COMMAND --help` explains a command. RDMATX_DEBUG=1 shows tracebacks.",
    )
    parser.add_argument("--version", action=_Version, dest="version")
    commands = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True)
    for name, (module, summary) in COMMANDS.items():
        sub = commands.add_parser(
            name,
            help=summary,
            description=f"{summary[0].upper()}{summary[1:]}.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if command in (None, name):
            importlib.import_module(module).configure(sub)
    return parser


def _raise_interrupted(signal_number: int, _: FrameType | None) -> None:
    raise Interrupted(signal_number)


@contextmanager
def _ending_signals() -> Iterator[None]:
    """A command that is told to end removes what it has half written, as after Ctrl-C.

    A signal that is ignored (``nohup``) or has a handler already stays as it is.
    """
    mine = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) is signal.SIG_DFL
    ]
    for number in mine:
        signal.signal(number, _raise_interrupted)
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)


def run_command(arguments: Sequence[str]) -> int:
    """Parses and runs; what goes wrong comes out as an exception."""
    command = next((word for word in arguments if word in COMMANDS), "")
    parsed = build_parser(command).parse_args(arguments)
    with _ending_signals():
        status: int = importlib.import_module(COMMANDS[parsed.subcommand][0]).execute(parsed)
        sys.stdout.flush()
    return status


def _silence_stdout() -> None:
    """After a broken pipe: nothing more is written, not even by the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_expected(error: Exception) -> bool:
    """Whether the error is a sentence for the user, and not a mistake in our own code."""
    if isinstance(error, CommandError | OSError):
        return True
    from rdmatx.errors import Error

    return isinstance(error, Error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status."""
    try:
        return run_command(sys.argv[1:] if arguments is None else arguments)
    except KeyboardInterrupt:
        note("rdmatx: interrupted")
        return 130
    except Interrupted as interruption:
        name = signal.Signals(interruption.signal_number).name
        note(f"rdmatx: ended by {name}")
        return 128 + interruption.signal_number
    except BrokenPipeError as error:
        if error.filename is not None or type(error) is not BrokenPipeError:
            note(f"rdmatx: {describe(error)}")
        else:
            _silence_stdout()
        return 1
    except Exception as error:
        if os.environ.get("RDMATX_DEBUG", "0") not in ("", "0"):
            raise
        if _is_expected(error):
            note(f"rdmatx: {describe(error)}")
        elif isinstance(error, ImportError):
            note(
                f"rdmatx: the installation is not complete: {error}. Install it again: pip install rdmatx"
            )
        else:
            note(
                f"rdmatx: a mistake in rdmatx itself: {type(error).__name__}: {error}. "
                "Run it again with RDMATX_DEBUG=1 and report what it prints."
            )
        return 1


if __name__ == "__main__":
    sys.exit(main())

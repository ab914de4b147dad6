"""``rdmatx send FILE… HOST:PORT``."""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

from rdmatx.cli.errors import CommandError
from rdmatx.cli.options import add_device_options, add_json_option, parse_address
from rdmatx.cli.output import emit, format_bytes, parse_seconds, printable, say

if TYPE_CHECKING:
    from rdmatx.cli.transfer.sender import Source


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx send``."""
    parser.epilog = (
        "Start `rdmatx recv` on the other side first; it prints HOST:PORT. Files keep their\n"
        "names, without their folders. Exit status 0 means that the receiver has stored every\n"
        "file and that its SHA-256 is the one computed here. A secret that the receiver asks for\n"
        "is taken from RDMATX_SECRET in the environment, never from the command line."
    )
    parser.add_argument("files", nargs="+", metavar="FILE", help="what to send")
    parser.add_argument("address", metavar="HOST:PORT", help="where `rdmatx recv` listens")
    add_device_options(parser)
    parser.add_argument(
        "--timeout",
        type=parse_seconds,
        default=30.0,
        metavar="S",
        help="give up when the receiver is silent for S seconds (default: 30)",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Sends the files; returns 0 when all are stored and verified."""
    try:
        address = parse_address(arguments.address, needs_port=True)
    except argparse.ArgumentTypeError as error:
        raise CommandError(
            f"the last argument is where to send: {error} (as in `rdmatx send FILE 10.0.0.2:7471`)"
        ) from None
    from rdmatx.cli.transfer.sender import open_sources

    # Before anything is opened or connected: a wrong file name is found at once.
    sources = open_sources(arguments.files)
    try:
        record = _send(arguments, address, sources)
    finally:
        for source in sources:
            source.close()
    if arguments.json:
        emit(record)
    else:
        _print_summary(record)
    return 0


def _send(arguments: argparse.Namespace, address: str, sources: list[Source]) -> dict[str, Any]:
    import rdmatx
    from rdmatx.cli.transfer.progress import make_progress
    from rdmatx.cli.transfer.result import summarize
    from rdmatx.cli.transfer.sender import Sender

    with (
        rdmatx.Context(arguments.device, arguments.provider) as context,
        context.connect(address, timeout=arguments.timeout) as connection,
    ):
        begin = time.perf_counter()
        with make_progress(silent=arguments.json) as progress:
            sender = Sender(context, connection, timeout=arguments.timeout, progress=progress)
            sent = sender.send(sources)
        seconds = time.perf_counter() - begin
        return {
            "command": "send",
            "device": context.device,
            "provider": context.provider,
            "peer": address,
            **summarize(sent, seconds),
            "rdmatx_version": rdmatx.__version__,
        }


def _print_summary(record: dict[str, Any]) -> None:
    from rdmatx.cli.transfer.result import describe_speed

    for file in record["files"]:
        say(
            f"sent {printable(file['name'])}: {format_bytes(file['bytes'])}, "
            f"sha256 {file['sha256']} verified"
        )
    say(describe_speed(record))

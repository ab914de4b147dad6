"""``rdmatx recv --listen HOST:PORT``."""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rdmatx.cli.errors import CommandError, describe
from rdmatx.cli.options import add_device_options, add_json_option, listen_address
from rdmatx.cli.output import (
    emit,
    format_bytes,
    note,
    parse_count,
    parse_seconds,
    parse_size,
    printable,
    say,
)

if TYPE_CHECKING:
    from rdmatx import Connection, Context, Listener
    from rdmatx.cli.transfer.storage import Folder

# How long the sender may be silent where --timeout does not say.
SILENCE_SECONDS = 30.0


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx recv``."""
    parser.epilog = (
        "The first line on stdout says where it listens: `listening on HOST:PORT …`, or with\n"
        '--json {"listening": "HOST:PORT", …}. Senders are served one after the other. A file\n'
        "gets its name when it is whole and its SHA-256 is the sender's; nothing else stays.\n"
        "It listens on the loopback unless --listen says otherwise. Whoever reaches the port may\n"
        "send, unless RDMATX_SECRET is set in the environment: then senders need the same one."
    )
    parser.add_argument(
        "--listen",
        type=listen_address,
        default="127.0.0.1:0",
        metavar="HOST:PORT",
        help="where to wait for senders; port 0 takes a free one (default: 127.0.0.1:0)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where to put the files (default: .)",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist already")
    how_many = parser.add_mutually_exclusive_group()
    how_many.add_argument(
        "--once", action="store_const", const=1, dest="count", help="end after one sender"
    )
    how_many.add_argument("--count", type=parse_count, metavar="N", help="end after N senders")
    add_device_options(parser)
    parser.add_argument(
        "--timeout",
        type=parse_seconds,
        metavar="S",
        help="give up when no sender comes for S seconds (default: never) or one is silent for "
        "S seconds (default: 30)",
    )
    parser.add_argument(
        "--window",
        type=parse_size,
        default=64 << 20,
        metavar="BYTES",
        help="registered memory that senders write into (default: 64M)",
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Serves senders; returns 0 when none of them failed."""
    import rdmatx
    from rdmatx.cli.transfer.storage import Folder

    folder = Folder(arguments.out)
    try:
        with (
            rdmatx.Context(arguments.device, arguments.provider) as context,
            context.listen(arguments.listen) as listener,
        ):
            _announce(arguments, context, listener)
            return _serve(arguments, context, listener, folder)
    finally:
        folder.close()


def _announce(arguments: argparse.Namespace, context: Context, listener: Listener) -> None:
    if arguments.json:
        emit(
            {
                "listening": listener.address,
                "device": context.device,
                "provider": context.provider,
            }
        )
    else:
        say(f"listening on {listener.address} with {context.device} ({context.provider})")


def _serve(
    arguments: argparse.Namespace, context: Context, listener: Listener, folder: Folder
) -> int:
    served = failed = 0
    while arguments.count is None or served < arguments.count:
        connection = _accept(listener, arguments.timeout)
        if connection is None:
            continue
        served += 1
        try:
            with connection:
                record = _receive(arguments, context, connection, folder)
        except Exception as error:
            # One sender's failure is no reason to turn the next one away.
            if arguments.count == 1:
                raise
            note(f"rdmatx: {describe(error)}")
            failed += 1
            continue
        if arguments.json:
            emit(record)
        else:
            _print_summary(record, folder)
    if failed:
        raise CommandError(f"{failed} of {served} senders failed")
    return 0


def _accept(listener: Listener, timeout: float | None) -> Connection | None:
    """The next sender; ``None`` where what came was no peer of ours, which is no failure here."""
    from rdmatx.errors import AuthenticationError, PeerLostError, TimeoutError

    try:
        return listener.accept(timeout=math.inf if timeout is None else timeout)
    except TimeoutError:
        raise CommandError(f"no sender came within {timeout:g} s") from None
    except (PeerLostError, AuthenticationError) as error:
        note(f"rdmatx: {describe(error)}")
        return None


def _receive(
    arguments: argparse.Namespace, context: Context, connection: Connection, folder: Folder
) -> dict[str, Any]:
    import rdmatx
    from rdmatx.cli.transfer.progress import make_progress
    from rdmatx.cli.transfer.receiver import Receiver
    from rdmatx.cli.transfer.result import summarize

    begin = time.perf_counter()
    with make_progress(silent=arguments.json) as progress:
        receiver = Receiver(
            context,
            connection,
            folder,
            overwrite=arguments.overwrite,
            timeout=arguments.timeout or SILENCE_SECONDS,
            progress=progress,
            window_bytes=arguments.window,
        )
        received = receiver.receive()
    return {
        "command": "recv",
        "device": context.device,
        "provider": context.provider,
        "peer": connection.peer,
        "out": str(folder.path),
        **summarize(received, time.perf_counter() - begin),
        "rdmatx_version": rdmatx.__version__,
    }


def _print_summary(record: dict[str, Any], folder: Folder) -> None:
    from rdmatx.cli.transfer.result import describe_speed

    for file in record["files"]:
        say(
            f"received {printable(str(folder.path / file['name']))}: "
            f"{format_bytes(file['bytes'])}, sha256 {file['sha256']} verified"
        )
    say(describe_speed(record))

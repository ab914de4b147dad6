"""Arguments that several commands share."""

from __future__ import annotations

import argparse


def add_device_options(parser: argparse.ArgumentParser) -> None:
    """``--device`` and ``--provider``, as ``rdmatx.Context`` takes them."""
    parser.add_argument(
        "--device", metavar="NAME", help="the device to use, such as mlx5_0 (default: the best)"
    )
    parser.add_argument(
        "--provider",
        choices=("auto", "system", "soft"),
        default="auto",
        help="system: an RDMA device of this machine; soft: rdmatx's software HCA; "
        "auto: a device where there is an active one, else soft (default)",
    )


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")


def parse_address(text: str, *, needs_port: bool) -> str:
    """Checks "HOST:PORT" and gives it back; raises ``ArgumentTypeError`` with what is wrong.

    IPv6 addresses stand in brackets: "[::1]:7471". Without ``needs_port``, "HOST" alone means
    any free port.
    """
    host, colon, port = text.rpartition(":")
    if text.startswith("[") and text.endswith("]"):
        host, colon, port = text, "", ""
    elif not colon:
        host, port = text, ""
    if not colon and not needs_port:
        port = "0"
    if not host or (":" in host and not (host.startswith("[") and host.endswith("]"))):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form HOST:PORT")
    if not (port.isascii() and port.isdecimal() and int(port) <= 65535):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not of the form HOST:PORT, with a port of at most 65535"
        )
    if needs_port and int(port) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} names port 0; take the port `rdmatx recv` prints"
        )
    return f"{host}:{port}"


def listen_address(text: str) -> str:
    """Where to listen. An argparse type."""
    return parse_address(text, needs_port=False)

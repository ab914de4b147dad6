"""``rdmatx devices``: the devices, and which one would be chosen and why."""

from __future__ import annotations

import argparse
from typing import Any

from rdmatx.cli.options import add_device_options, add_json_option
from rdmatx.cli.output import emit, format_table, say

if TYPE_CHECKING:
    from rdmatx import DeviceInfo


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx devices``."""
    parser.epilog = (
        "With --json one object a device; the one that would be used has \"chosen\": true. Exit\n"
        "status 0 where there is a device to use, 1 where what was asked for is not there."
    )  # fmt: skip
    add_device_options(parser)
    add_json_option(parser)

"""``rdmatx devices``: the devices, and which one would be chosen and why."""

from __future__ import annotations

import argparse
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from rdmatx.cli.options import add_device_options, add_json_option
from rdmatx.cli.output import emit, format_bytes, format_table, note, say

if TYPE_CHECKING:
    from rdmatx.devices import Choice, DeviceInfo, PortInfo


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx devices``."""
    parser.epilog = (
        "Exit status 0 where there is a device to use, 1 where what was asked for is not there.\n"
        'With --json one object a device, its ports and GIDs in it; "state" is ACTIVE where one of\n'
        'its ports is, "chosen" marks the device that would be used, "reason" says why. Where the\n'
        "system has no RDMA device that serves, stderr says why and what to do about it."
    )
    add_device_options(parser)
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints the devices; returns 0 where one of them serves."""
    say_it_here_only()
    from rdmatx.devices import list_devices, system_report
    from rdmatx.errors import Error

    found = list_devices(arguments.provider)
    choice, refusal = None, None
    try:
        choice = _choose(arguments)
    except Error as error:
        refusal = error
    if arguments.json:
        for device in found:
            emit(_to_json(device, choice))
    else:
        say(_format(found, choice))
    if arguments.provider != "soft" and refusal is None:
        report = system_report()
        if report.state != "ready":
            note(f"no RDMA device of the system serves: {report.reason} {report.remedy}".rstrip())
    if refusal is not None:
        raise refusal
    return 0


def say_it_here_only() -> None:
    """Silences the library's own warning about the choice, which this command explains better."""
    os.environ.setdefault("RDMATX_LOG", "error")


def _choose(arguments: argparse.Namespace) -> Choice:
    from rdmatx.devices import choose_device

    return choose_device(arguments.device, provider=arguments.provider)


def _is_chosen(device: DeviceInfo, choice: Choice | None) -> bool:
    return choice is not None and (device.provider, device.name) == (choice.provider, choice.device)


def _to_json(device: DeviceInfo, choice: Choice | None) -> dict[str, Any]:
    chosen = _is_chosen(device, choice)
    first = device.ports[0].state if device.ports else None
    return {
        **dataclasses.asdict(device),
        "state": "ACTIVE" if device.is_active else first,
        "chosen": chosen,
        "reason": choice.reason if choice is not None and chosen else None,
    }


def _format(found: list[DeviceInfo], choice: Choice | None) -> str:
    lines = []
    if found:
        headings = ("", "device", "provider", "port", "state", "link", "speed", "MTU", "message")
        rows = [row for device in found for row in _rows(device, _is_chosen(device, choice))]
        lines.append(format_table(headings, rows))
    for device in found:
        for port in device.ports:
            for gid in port.gids:
                behind = f" on {gid.netdev}" if gid.netdev else ""
                where = f"{device.name}/{port.number}"
                lines.append(f"{where} GID {gid.index}: {gid.gid} ({gid.type}{behind})")
    if choice is not None:
        lines.append(f"* {choice.device} ({choice.provider}) would be used: {choice.reason}")
    return "\n".join(lines) or "no devices"


def _rows(device: DeviceInfo, chosen: bool) -> list[list[Any]]:
    mark = "*" if chosen else ""
    if device.problem:
        return [[mark, device.name, device.provider, "-", device.problem, "", "", "-", "-"]]
    return [
        [
            mark,
            device.name,
            device.provider,
            port.number,
            port.state,
            port.link_layer,
            _speed(port),
            port.active_mtu,
            f"≤ {format_bytes(port.max_msg_sz)}",
        ]
        for port in device.ports
    ]


def _speed(port: PortInfo) -> str:
    speed = port.gigabits_per_second
    return f"{speed:g} Gb/s" if speed else "-"

"""``rdmatx doctor``: what is wrong with this machine for RDMA, and what to do about it."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from rdmatx.cli import checks
from rdmatx.cli.checks import Check
from rdmatx.cli.devices import say_it_here_only
from rdmatx.cli.gpu_checks import check_gpus
from rdmatx.cli.options import add_json_option
from rdmatx.cli.output import emit, say

_MARKS = {"fine": "ok     ", "hint": "hint   ", "problem": "PROBLEM"}


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``rdmatx doctor``."""
    parser.epilog = (
        "Changes nothing. Exit status 0 where rdmatx can work (over an RDMA device or its\n"
        "software HCA), 1 where it cannot."
    )
    add_json_option(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Prints what was found; returns 0 where a device can be used."""
    say_it_here_only()
    findings = [*_check_system(), *check_gpus(), *_check_process(), _check_lab()]
    choice = _choose()
    if arguments.json:
        emit(
            {
                "usable": choice["device"] is not None,
                **choice,
                "checks": [finding.to_json() for finding in findings],
            }
        )
    else:
        _print(findings, choice)
    return 0 if choice["device"] is not None else 1


def _check_system() -> list[Check]:
    """The system's verbs: what rdmatx itself makes of them, and each part by itself."""
    from rdmatx.devices import system_report

    report = system_report()
    kernel = checks.check_kernel()
    if report.state == "ready":
        found: list[Check | None] = [Check("RDMA", "fine", report.reason), kernel]
    elif report.state == "no_kernel_support" and kernel.verdict == "problem":
        # The check of the kernel says the same, and knows which modules there are.
        found = [kernel]
    else:
        found = [Check("RDMA", "problem", report.reason, report.remedy), kernel]
    found += [
        *checks.check_driver(),
        *checks.check_ports(),
        checks.check_permissions(),
        checks.check_topology(),
    ]
    return [check for check in found if check is not None]


def _check_process() -> list[Check]:
    found = [
        checks.check_memlock(),
        checks.check_cross_memory(),
        checks.check_shared_memory(),
        checks.check_congestion_control(),
        checks.check_huge_pages(),
        checks.check_machine(),
    ]
    return [check for check in found if check is not None]


def _check_lab() -> Check:
    """Whether `rdmatx lab run` would work: a hint only, as the lab is for those who want it."""
    from rdmatx import lab

    status = lab.status()
    if status.ready:
        return Check("lab", "fine", "`rdmatx lab run -- COMMAND` has a soft-RoCE device")
    return Check("lab", "hint", "; ".join(status.problems), "; then: ".join(status.remedies))


def _choose() -> dict[str, Any]:
    """What a ``Context()`` would use now, and why; or why it would find nothing."""
    from rdmatx.devices import choose_device
    from rdmatx.errors import Error

    try:
        choice = choose_device()
    except Error as error:
        return {"device": None, "provider": None, "reason": str(error)}
    return {"device": choice.device, "provider": choice.provider, "reason": choice.reason}


def _print(findings: list[Check], choice: dict[str, Any]) -> None:
    width = max(len(finding.name) for finding in findings)
    indent = " " * (len(_MARKS["fine"]) + width + 4)
    for finding in findings:
        head = f"{_MARKS[finding.verdict]}  {finding.name.ljust(width)}  "
        say(textwrap.fill(finding.finding, 100, initial_indent=head, subsequent_indent=indent))
        if finding.remedy:
            say(
                textwrap.fill(
                    f"→ {finding.remedy}",
                    100,
                    initial_indent=indent,
                    subsequent_indent=f"{indent}  ",
                    break_on_hyphens=False,
                )
            )
    say("")
    if choice["device"] is None:
        say(f"rdmatx cannot work here: {choice['reason']}")
    else:
        say(f"rdmatx would use {choice['device']} ({choice['provider']}): {choice['reason']}")

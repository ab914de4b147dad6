"""What the scripts of this folder share: run measurements, print them, hold them to a target.

The measuring itself is in the package (``rdmatx.cli.bench``), so that ``rdmatx bench`` does the
same on any machine. A script here asks one question and knows which answer is good enough.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.command import format_results
from rdmatx.cli.bench.p2p import Plan, Result, run
from rdmatx.cli.errors import CommandError


@dataclass(frozen=True)
class Question:
    """One comparison: ``targets`` names, for each peer, the ratio that has to be reached."""

    title: str
    case: Case
    sizes: Sequence[int]
    targets: Mapping[str, float] = field(default_factory=dict)


def ask(questions: Sequence[Question], description: str) -> int:
    """Measures every question and reports; 1 where a target was missed or bytes were wrong."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=5, help="rounds a size (default: 5)")
    parser.add_argument("--json", action="store_true", help="print JSON, one object a line")
    arguments = parser.parse_args()
    missed: list[str] = []
    try:
        for question in questions:
            missed += _measure(question, arguments.rounds, as_json=arguments.json)
    except CommandError as error:
        print(f"{sys.argv[0]}: {error}", file=sys.stderr)
        return 1
    for line in missed:
        print(f"missed: {line}", file=sys.stderr)
    return 1 if missed else 0


def _measure(question: Question, rounds: int, *, as_json: bool) -> list[str]:
    plan = Plan(question.case, question.sizes, tuple(question.targets), rounds)
    results: list[Result] = []
    for result in run(plan):
        results.append(result)
        if as_json:
            for record in result.records():
                print(json.dumps(record), flush=True)
    if not as_json:
        print(f"{question.title}\n\n{format_results(results)}\n", flush=True)
    return [
        f"{question.title}: {record['bytes']} bytes: {record['ratio']:.2f} of {record['peer']}, "
        f"target {question.targets[record['peer']]:.2f}"
        for result in results
        for record in (result.records() if result.peers else [])
        if record["ratio"] < question.targets[record["peer"]]
    ] + [
        f"{question.title}: {result.case.bytes} bytes arrived wrong"
        for result in results
        if not result.verified
    ]

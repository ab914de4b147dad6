"""Checks the model: `python -m tests.model` from the top of the checkout; `make model` does that.

Without names, every configuration must hold and every mistake must be found that
is not there without it. With names, only these; with
--trace the steps to the error are printed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.model.checker import CheckerError, Outcome, check, missing_tools, trace
from tests.model.configurations import MISTAKES, QUICK, THOROUGH, Configuration, Mistake


def search(subject: Configuration | Mistake, folder: Path) -> Outcome:
    if isinstance(subject, Configuration):
        return check(
            subject.defines,
            folder,
            cycles=subject.cycles,
            optimise=subject in THOROUGH,
            timeout=900.0,
        )
    sound = check(subject.defines, folder, optimise=True, timeout=900.0)
    if sound.found is not None or not sound.complete:
        raise CheckerError(f"without its mistake, {subject.name} does not hold: {sound.found}")
    return check({**subject.defines, **subject.switches}, folder)


def verdict(subject: Configuration | Mistake, outcome: Outcome) -> tuple[bool, str]:
    """Whether the outcome is as it must be, and a word for it."""
    if isinstance(subject, Mistake):
        return outcome.found == subject.found, f"found: {outcome.found}"
    if outcome.found is not None:
        return False, f"does not hold: {outcome.found}"
    if not outcome.complete or outcome.states < subject.least_states:
        return False, "not all states were visited"
    return True, "holds"


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.model", description=__doc__.splitlines()[0]
    )
    subjects: list[Configuration | Mistake] = [*QUICK, *THOROUGH, *MISTAKES]
    parser.add_argument("name", nargs="*", help=", ".join(subject.name for subject in subjects))
    parser.add_argument("--trace", action="store_true", help="print the steps to an error")
    arguments = parser.parse_args()
    unknown = set(arguments.name) - {subject.name for subject in subjects}
    if unknown:
        parser.error(f"no configuration is named {', '.join(sorted(unknown))}")
    missing = missing_tools()
    if missing:
        print(f"The model cannot be checked: {missing}.", file=sys.stderr)
        return 2
    good = True
    for subject in subjects:
        if arguments.name and subject.name not in arguments.name:
            continue
        with tempfile.TemporaryDirectory(prefix="rdmatx-model-") as folder:
            try:
                outcome = search(subject, Path(folder))
            except CheckerError as error:
                print(f"WRONG  {subject.name}: {error}", flush=True)
                good = False
                continue
            right, word = verdict(subject, outcome)
            good = good and right
            print(
                f"{'' if right else 'WRONG  '}{subject.name:24}{outcome.states:>9} states, depth "
                f"{outcome.depth:>3}, {outcome.seconds:5.1f} s  {word}",
                flush=True,
            )
            if arguments.trace and outcome.found:
                switches = subject.switches if isinstance(subject, Mistake) else {}
                print(trace({**subject.defines, **switches}, Path(folder)))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

"""PyTorch's own tests of torch.distributed, as they are installed with it, with rdmatx in gloo's place.

    python -m tests.torch.suite --world 2                    # those that pass with gloo, and then with rdmatx
    python -m tests.torch.suite --world 3 -k all_to_all

The suite has its tests for a backend named gloo, so the runner answers for the name: a process group of the
backend "gloo" is made by rdmatx. Tests that it keeps for MPI on the CPU (all_to_all), which gloo lacks, are
run as well. Each test forks its ranks from a process that has torch imported already.

Needs `expecttest`, as all of PyTorch's tests do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import unittest
from typing import Any

from tests.launch import ROOT

KEPT_FOR_MPI = "Only MPI supports"
#: What cannot be answered for, and why.
ABOUT_GLOO = {
    "test_ddp_logging_data_cpu": "torch reads the number of threads out of gloo's own object where the "
    "backend has that name, and calls every backend of another project custom",
}
#: Seconds that one test may take.
LIMIT = 120


def put_in_place_of_gloo() -> None:
    """Process groups of the backend named "gloo" are rdmatx's from here on."""
    from torch.distributed import distributed_c10d

    from rdmatx.torch import _extension
    from rdmatx.torch.process_groups import make_backend

    class AnswersForTheName(type):
        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, _extension.Backend)

        def __call__(cls, store: Any, rank: int, size: int, timeout: Any = None, **_: Any) -> Any:
            return make_backend(store, rank, size, timeout.total_seconds())

    class ProcessGroupGloo(metaclass=AnswersForTheName):
        pass

    distributed_c10d.ProcessGroupGloo = ProcessGroupGloo  # type: ignore[misc]
    # The profiler shows each under its own name.
    from torch.testing._internal.distributed import distributed_test

    shown = distributed_test.get_profiling_event

    def under_our_name(name: str, *arguments: Any, **options: Any) -> Any:
        events = shown(name.replace("gloo:", "rdmatx:"), *arguments, **options)
        for event in events:
            event.name = event.name.replace("rdmatx:", "gloo:")
        return events

    distributed_test.get_profiling_event = under_our_name


def tests_of_torch() -> type:
    """The class with all of them."""
    from torch import multiprocessing
    from torch.testing._internal.distributed import distributed_test

    class Suite(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):  # type: ignore[misc]
        def setUp(self) -> None:
            super().setUp()
            self._start_processes(multiprocessing.get_context("fork").Process)
            distributed_test.torch.backends.cudnn.flags(enabled=True, allow_tf32=False).__enter__()

    for name in dir(Suite):
        test = getattr(Suite, name)
        if KEPT_FOR_MPI in str(getattr(test, "__unittest_skip_why__", "")):
            del test.__unittest_skip__, test.__unittest_skip_why__
    return Suite


class Outcomes(unittest.TestResult):
    """One word a test, printed as it comes."""

    def tell(self, test: unittest.TestCase, word: str, text: str = "") -> None:
        print(json.dumps([test.id().rpartition(".")[2], word, text]), flush=True)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        self.tell(test, "passed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        self.tell(test, "skipped", reason)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        self.tell(test, "failed", self._exc_info_to_string(err, test))  # type: ignore[attr-defined]

    addError = addFailure  # noqa: N815


def run_here(backend: str, names: list[str]) -> None:
    """In a process of its own: with that backend, those tests, all without any."""
    if backend == "rdmatx":
        put_in_place_of_gloo()
    suite = tests_of_torch()
    chosen = names or unittest.TestLoader().getTestCaseNames(suite)
    unittest.TestSuite(suite(name) for name in chosen).run(Outcomes())


def run(backend: str, world: int, names: list[str], timeout: float) -> dict[str, tuple[str, str]]:
    """What became of each test: a word, and why."""
    environment = {
        **os.environ,
        "BACKEND": "gloo",
        "WORLD_SIZE": str(world),
        "RDMATX_PROVIDER": "soft",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.torch.suite", "--here", backend, *names],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=timeout,
        check=False,
    )
    outcomes = {}
    for line in done.stdout.splitlines():
        if line.startswith('["test_'):
            name, word, text = json.loads(line)
            outcomes[name] = (word, text)
    return outcomes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--world", type=int, default=2)
    parser.add_argument("-k", default="", help="only tests whose name has this in it")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    if arguments.here:
        run_here(arguments.here, arguments.names)
        return 0
    os.environ.setdefault("BACKEND", "gloo")
    os.environ.setdefault("WORLD_SIZE", str(arguments.world))
    every = unittest.TestLoader().getTestCaseNames(tests_of_torch())
    names = arguments.names or [name for name in every if arguments.k in name]
    with_gloo = run("gloo", arguments.world, names, LIMIT * len(names))
    passed = [name for name, (word, _) in with_gloo.items() if word == "passed"]
    kept = [name for name in names if "all_to_all" in name and "cuda" not in name]
    wanted = sorted({*passed, *kept} - set(ABOUT_GLOO))
    with_us = run("rdmatx", arguments.world, wanted, LIMIT * len(wanted))
    print(f"world {arguments.world}: gloo passes {len(passed)} of {len(with_gloo)}")
    for name in sorted(ABOUT_GLOO.keys() & set(passed)):
        print(f"left out: {name}: {ABOUT_GLOO[name]}")
    bad = 0
    for name in wanted:
        word, text = with_us.get(name, ("lost", "its process died"))
        if word == "passed" or (word == "skipped" and with_gloo[name][0] == "skipped"):
            continue
        bad += 1
        print(f"--- {name}: {word}\n{text[-3000:]}")
    ours = sum(word == "passed" for word, _ in with_us.values())
    print(f"world {arguments.world}: rdmatx passes {ours} of the {len(wanted)} tried, {bad} do not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

"""``rdmatx bench p2p``: the rounds of ours and the peers, alternating in one run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.launched import settings
from rdmatx.cli.bench.pair import WorkerPair
from rdmatx.cli.bench.perftest import Perftest
from rdmatx.cli.bench.sample import Sample, Summary, best, ratio, summarize

# Those that take their turns in the processes of ours, over the same memory.
_GUESTS = ("gloo", "cma", "ring", "split", "memcpy")
# Those that run in two processes of their own for each of their settings.
_LAUNCHED = ("mpi", "ucx", "nixl")
PEERS = (*_GUESTS, *_LAUNCHED, "perftest")
# A round lasts about this long; shorter ones drown in the noise of the machine.
ROUND_SECONDS = 0.25
# Latency percentiles need that many values, and Python's memory has its bounds.
FEWEST_LATENCIES = 1000
MOST_LATENCIES = 200_000


class Runner(Protocol):
    """Measures one contestant, wherever it runs."""

    def arrange(self, case: Case) -> None:
        """Prepares the next size."""

    def round(self, iterations: int) -> Sample:
        """One round."""


class PairRunner:
    """A contestant inside two worker processes. Does not own them."""

    _seeds = itertools.count(1)

    def __init__(self, pair: WorkerPair, name: str, case: Case) -> None:
        self._pair = pair
        self._name = name
        offer = pair.ask(1, "offer", contestant=name, case=case.to_json())
        self.identity: dict[str, Any] = pair.ask_both(
            "join", contestant=name, case=case.to_json(), offer=offer
        )[0]
        self._one_sided = self.identity.pop("one_sided")

    def arrange(self, case: Case) -> None:
        del case  # `allocate` has told the workers
        offer = self._pair.ask(1, "arrange", contestant=self._name, offer={})
        self._pair.ask(0, "arrange", contestant=self._name, offer=offer)

    def round(self, iterations: int) -> Sample:
        pair, name = self._pair, self._name
        pair.ask_both("prepare", contestant=name, seed=next(self._seeds))
        before = sum(pair.ask_both("cpu_seconds"))
        # The target of one-sided operations is told nothing: it sleeps.
        if self._one_sided:
            result = pair.ask(0, "run", contestant=name, iterations=iterations)
        else:
            result = pair.ask_both("run", contestant=name, iterations=iterations)[0]
        spent = sum(pair.ask_both("cpu_seconds")) - before
        digests = itertools.chain(*pair.ask_both("digests", contestant=name))
        return Sample(
            iterations=iterations,
            seconds=result["seconds"],
            cpu_seconds=spent,
            verified=len(set(digests)) == 1,
            lat_us=result.get("lat_us"),
        )


@dataclass(frozen=True)
class Plan:
    """What `rdmatx bench p2p` was asked for. ``iterations`` fixes them, else time does."""

    case: Case
    sizes: Sequence[int]
    peers: Sequence[str] = ()
    rounds: int = 5
    iterations: int | None = None


@dataclass(frozen=True)
class Result:
    """One size: our summary and each peer's."""

    case: Case
    rounds: int
    identity: dict[str, Any]
    ours: Summary
    peers: dict[str, Summary]

    @property
    def verified(self) -> bool:
        """Whether nobody's bytes arrived wrong."""
        return all(summary.verified is not False for summary in (self.ours, *self.peers.values()))

    def records(self) -> list[dict[str, Any]]:
        """The report's objects: one, or one a peer, each with all of ours."""
        from rdmatx import __version__

        case = self.case
        base = {
            "bench": "p2p",
            **self.identity,
            "world": 2,
            "op": case.op,
            "mode": case.mode,
            "bytes": case.bytes,
            "memory": case.memory,
            "pages": "huge" if case.huge else "4K",
            "registered": case.registered,
            "rounds": self.rounds,
            **self.ours.fields(case),
            "rdmatx_version": __version__,
        }
        if not self.peers:
            return [base]
        return [
            {
                **base,
                "peer": name,
                **theirs.fields(case, "peer_"),
                "ratio": ratio(case, self.ours, theirs),
            }
            for name, theirs in self.peers.items()
        ]


@dataclass(frozen=True)
class _Entry:
    """A contestant in one of its settings."""

    name: str
    runner: Runner
    setting: str | None = None


def run(plan: Plan) -> Iterator[Result]:
    """Measures size after size. Raises ``CommandError`` where a peer is not there."""
    # Asked for first: what is not installed should not cost a measurement.
    wanted = {name: settings(name, plan.case) for name in plan.peers if name in _LAUNCHED}
    with ExitStack() as stack:
        pairs = [stack.enter_context(WorkerPair())]
        ours = PairRunner(pairs[0], "ours", plan.case)
        entries = [_Entry("ours", ours)]
        for name in plan.peers:
            if name in _GUESTS:
                entries.append(_Entry(name, PairRunner(pairs[0], name, plan.case)))
            elif name == "perftest":
                entries.append(_Entry(name, Perftest(plan.case, ours.identity["device"])))
            for setting in wanted.get(name, ()):
                pairs.append(stack.enter_context(WorkerPair(setting.launcher, setting.environment)))
                runner = PairRunner(pairs[-1], name, plan.case)
                entries.append(_Entry(name, runner, setting.name))
        for size in plan.sizes:
            summaries = _measure(plan, plan.case.of_size(size), pairs, entries)
            yield Result(
                case=plan.case.of_size(size),
                rounds=plan.rounds,
                identity=ours.identity,
                ours=summaries.pop("ours"),
                peers=summaries,
            )
        for pair in pairs:
            pair.ask_both("close")


def _measure(
    plan: Plan, case: Case, pairs: Sequence[WorkerPair], entries: Sequence[_Entry]
) -> dict[str, Summary]:
    for pair in pairs:
        pair.ask_both("allocate", case=case.to_json())
    counts = []
    for entry in entries:
        entry.runner.arrange(case)
        counts.append(plan.iterations or _calibrate(case, entry.runner))
    samples: list[list[Sample]] = [[] for _ in entries]
    for _ in range(plan.rounds):
        for entry, count, found in zip(entries, counts, samples, strict=True):
            found.append(entry.runner.round(count))
    summaries: dict[str, list[Summary]] = {}
    for entry, found in zip(entries, samples, strict=True):
        summary = summarize(case, found, entry.setting)
        summaries.setdefault(entry.name, []).append(summary)
    return {name: best(case, of_settings) for name, of_settings in summaries.items()}


def _calibrate(case: Case, runner: Runner) -> int:
    """How many operations make a round. The rounds that find out are the warm-up as well."""
    count = 2 * case.window
    while True:
        seconds = max(runner.round(count).seconds, 1e-6)
        if seconds >= ROUND_SECONDS / 10:
            break
        count = math.ceil(count * min(10.0, ROUND_SECONDS / 8 / seconds))
    count = max(1, math.ceil(count * ROUND_SECONDS / seconds))
    if case.mode == "lat":
        # Not at any price: where one takes milliseconds, a round lasts two seconds at most.
        return min(max(count, min(FEWEST_LATENCIES, 8 * count)), MOST_LATENCIES)
    return count

"""What one round gave, and what all rounds of a contestant come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.statistics import median, rounded


@dataclass(frozen=True)
class Sample:
    """One round of one contestant.

    ``cpu_seconds`` is the processor time of both processes during the round. ``verified``
    says whether every destination held the origin's bytes afterwards; ``None`` where the
    contestant brings memory of its own that nobody can look into (perftest).
    """

    iterations: int
    seconds: float
    cpu_seconds: float
    verified: bool | None
    lat_us: dict[str, float] | None = None


@dataclass(frozen=True)
class Summary:
    """The medians over the rounds of one contestant.

    ``setting`` names the one that was the best, where the contestant was measured with several.
    """

    iterations: int
    verified: bool | None
    gbytes_per_s: float | None
    lat_us: dict[str, float] | None
    cpu_s_per_gb: float | None
    setting: str | None = None

    def fields(self, case: Case, prefix: str = "") -> dict[str, Any]:
        """The summary as fields of the report."""
        speed = (
            {"lat_us": self.lat_us} if case.mode == "lat" else {"gbytes_per_s": self.gbytes_per_s}
        )
        fields: dict[str, Any] = {**speed, "cpu_s_per_gb": self.cpu_s_per_gb, "iters": self.iterations,
                  "verified": self.verified}  # fmt: skip
        if self.setting is not None:
            fields["setting"] = self.setting
        return {f"{prefix}{name}": value for name, value in fields.items()}


def summarize(case: Case, samples: Sequence[Sample], setting: str | None = None) -> Summary:
    """Medians over rounds; a contestant is verified when every round was."""
    moves = 2 if case.op == "send" and case.mode == "lat" else 1
    cpu = [
        sample.cpu_seconds / (sample.iterations * case.bytes * moves / 1e9)
        for sample in samples
        if case.bytes
    ]
    latencies = [sample.lat_us for sample in samples if sample.lat_us is not None]
    verdicts = [sample.verified for sample in samples]
    return Summary(
        iterations=samples[0].iterations,
        verified=None if None in verdicts else all(verdicts),
        gbytes_per_s=rounded(
            median([sample.iterations * case.bytes / sample.seconds / 1e9 for sample in samples])
        ),
        lat_us={
            name: rounded(median([latency[name] for latency in latencies])) for name in latencies[0]
        }
        if latencies
        else None,
        cpu_s_per_gb=rounded(median(cpu)) if cpu else None,
        setting=setting,
    )


def best(case: Case, summaries: Sequence[Summary]) -> Summary:
    """The fastest of a contestant's settings; not verified where any of them was not."""
    fastest = summaries[0]
    for other in summaries[1:]:
        if ratio(case, other, fastest) > 1:
            fastest = other
    verdicts = [summary.verified for summary in summaries]
    return replace(fastest, verified=None if None in verdicts else all(verdicts))


def ratio(case: Case, ours: Summary, theirs: Summary) -> float:
    """How many times as fast as the peer we are: rates for "bw", inverse p50 times for "lat"."""
    if case.mode == "lat":
        assert ours.lat_us is not None
        assert theirs.lat_us is not None
        return rounded(theirs.lat_us["p50"] / ours.lat_us["p50"])
    assert ours.gbytes_per_s is not None
    assert theirs.gbytes_per_s is not None
    return rounded(ours.gbytes_per_s / theirs.gbytes_per_s)

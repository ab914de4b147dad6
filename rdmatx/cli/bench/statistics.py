"""The few sums that benchmarks need."""

from __future__ import annotations

import math
from collections.abc import Sequence


def percentile(ordered: Sequence[float], fraction: float) -> float:
    """The smallest value that ``fraction`` of the values do not exceed; ``ordered`` ascends."""
    if not ordered:
        raise ValueError("no values")
    return ordered[min(max(math.ceil(fraction * len(ordered)) - 1, 0), len(ordered) - 1)]


def latency_percentiles(samples: Sequence[float]) -> dict[str, float]:
    """p50, p99 and p999 of samples in any order."""
    ordered = sorted(samples)
    return {
        "p50": percentile(ordered, 0.5),
        "p99": percentile(ordered, 0.99),
        "p999": percentile(ordered, 0.999),
    }


def median(values: Sequence[float]) -> float:
    """The middle value; the mean of the two middle ones where there is no middle one."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no values")
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def rounded(value: float) -> float:
    """``value`` to four significant digits: more would pretend to know more."""
    return float(f"{value:.4g}")

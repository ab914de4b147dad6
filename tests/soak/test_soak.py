"""All operations at random between two processes, peers that die and come again, every byte looked at.

RDMATX_SOAK_SECONDS is how long one wire is soaked, 10 without it; `make soak` does hours. Every round has a
seed of its own, which is printed where it fails; RDMATX_SOAK_SEED=N does that round first, with the same
steps.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator

import pytest

import rdmatx
from rdmatx import errors
from tests import leaks
from tests.faults.test_load import resident_bytes
from tests.faults.victims import Nursery, Test
from tests.launch import TIME_SCALE
from tests.soak.traffic import End, step

SECONDS = float(os.environ.get("RDMATX_SOAK_SECONDS", "10"))
PATIENCE = 30.0 * TIME_SCALE
STEPS_A_ROUND = 60
# What the process may grow by once it is warm, however long it runs.
GROWTH_BYTES = 64 << 20


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery() as nursery:
        yield nursery


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.config.getoption("--provider") == "soft":
        metafunc.parametrize("provider", ["auto", "tcp"], indirect=True, scope="session")


def other_side(
    test: Test, provider: str, device: str | None, address: str, seed: int, dies: bool
) -> None:
    """Comes, takes its part of a round and leaves; or comes, and goes on until it is killed."""
    chance = random.Random(seed)
    verify = chance.random() < 0.3
    with (
        rdmatx.Context(device, provider, timeout=PATIENCE, verify=verify) as context,
        context.connect(address, retry=True) as connection,
    ):
        end = End.of(context, connection, 1)
        steps = 0
        while dies or steps < STEPS_A_ROUND:
            step(end, chance)
            steps += 1
        end.region.close()


def one_round(
    nursery: Nursery, context: rdmatx.Context, provider: str, device: str | None, seed: int
) -> tuple[Counter[str], int]:
    """One peer from its coming to its end; what was done, and how many bytes were looked at here."""
    chance = random.Random(seed)
    mood = random.Random(seed + 1)
    chance.random()  # as the other side draws it
    dies = mood.random() < 0.3
    dies_after = mood.randrange(1, STEPS_A_ROUND)
    with (
        context.listen() as listener,
        nursery.start(other_side, provider, device, listener.address, seed, dies) as peer,
        listener.accept() as connection,
    ):
        end = End.of(context, connection, 0)
        with end.region:
            for _ in range(dies_after if dies else STEPS_A_ROUND):
                step(end, chance)
            if dies:
                peer.signal(signal.SIGKILL)
                with pytest.raises((errors.PeerLostError, errors.CompletionError)):
                    steps_until_it_ends(end, chance)
                end.steps["deaths"] += 1
            else:
                assert peer.hear(PATIENCE) is None
                assert peer.status() == 0
        return end.steps, end.bytes_checked


def steps_until_it_ends(end: End, chance: random.Random) -> None:
    for _ in range(STEPS_A_ROUND):
        step(end, chance)


@pytest.mark.timeout(SECONDS + 90)
def test_soak(nursery: Nursery, provider: str, device_name: str | None) -> None:
    seeds = random.Random()
    seed = int(os.environ.get("RDMATX_SOAK_SEED", seeds.getrandbits(32)))
    until = time.monotonic() + SECONDS
    done: Counter[str] = Counter()
    rounds = total = resident = 0
    with rdmatx.Context(device_name, provider, timeout=PATIENCE) as context:
        before = leaks.snapshot()
        while rounds == 0 or time.monotonic() < until:
            try:
                steps, nbytes = one_round(nursery, context, provider, device_name, seed)
                # The first rounds bring what a context keeps as long as it lives.
                leaks.check(before) if rounds > 2 else None
            except BaseException:
                print(f"\nround {rounds} failed: RDMATX_SOAK_SEED={seed} repeats it")
                raise
            done += steps
            total += nbytes
            rounds += 1
            if rounds <= 3:
                before = leaks.snapshot()
            if rounds == 20:
                resident = resident_bytes()
            seed = seeds.getrandbits(32)
        if rounds > 20:
            grown = resident_bytes() - resident
            assert grown < GROWTH_BYTES, f"{grown} bytes more after {rounds} rounds"
    counts = ", ".join(f"{count} {name}" for name, count in sorted(done.items()))
    print(f"{rounds} rounds, {total / 1e9:.2f} GB looked at here: {counts}")

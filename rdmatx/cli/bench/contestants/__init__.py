"""Those who move the bytes: ours and the peers, each in a module of its own.

``CONTESTANTS`` names those that run inside worker processes: ours, gloo and the ways without a
protocol (cma, ring, split, memcpy) in the same two; mpi, ucx and nixl in two of their own for each
setting (``rdmatx.cli.bench.launched``).
perftest, which brings its own programs, is run by ``rdmatx.cli.bench.perftest``.
"""

from __future__ import annotations

import importlib

from rdmatx.cli.bench.case import Case
from rdmatx.cli.bench.contestants.base import Contestant

CONTESTANTS = {
    "ours": ("rdmatx.cli.bench.contestants.ours", "Ours"),
    "gloo": ("rdmatx.cli.bench.contestants.gloo", "Gloo"),
    "cma": ("rdmatx.cli.bench.contestants.cma", "CrossMemory"),
    "ring": ("rdmatx.cli.bench.contestants.raw", "SharedRing"),
    "split": ("rdmatx.cli.bench.contestants.raw", "SplitCopy"),
    "memcpy": ("rdmatx.cli.bench.contestants.memcpy", "Memcpy"),
    "mpi": ("rdmatx.cli.bench.contestants.mpi", "OpenMpi"),
    "ucx": ("rdmatx.cli.bench.contestants.ucx", "Ucx"),
    "nixl": ("rdmatx.cli.bench.contestants.nixl", "Nixl"),
}


def load(name: str) -> type[Contestant]:
    """The class of a contestant; only now is what it needs imported."""
    module, attribute = CONTESTANTS[name]
    loaded: type[Contestant] = getattr(importlib.import_module(module), attribute)
    return loaded


def make(name: str, rank: int, case: Case) -> Contestant:
    """A contestant for one of the two processes."""
    return load(name)(rank, case)

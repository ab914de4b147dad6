"""The backend under what PyTorch builds on it: DDP, profiler, debug mode, device meshes; its registration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.launch import ROOT, Rank, launch
from tests.torch.groups import process_group

STEPS = 12
DDP_OPTIONS: tuple[dict[str, bool], ...] = (
    {},
    {"find_unused_parameters": True},
    {"static_graph": True},
    {"gradient_as_bucket_view": True},
)


def network(unused: bool) -> Any:
    import torch
    from torch import nn

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(20, 300), nn.Linear(300, 3)
            self.unused = nn.Linear(5, 5) if unused else None

        def forward(self, x: Any) -> Any:
            return self.second(self.first(x).relu())

    torch.manual_seed(3)
    return Network()


def batches(rank: int) -> list[tuple[Any, Any]]:
    import torch

    generator = torch.Generator().manual_seed(100 + rank)
    inputs = [torch.randn(16, 20, generator=generator) for _ in range(STEPS)]
    return [(x, x[:, :3].argmax(1)) for x in inputs]


def skips(step: int, options: dict[str, bool]) -> bool:
    """Whether gradients of this step are kept for the next."""
    return step % 4 == 2 and not options.get("static_graph")


def alone(world: int, options: dict[str, bool]) -> list[float]:
    """What DDP does, in one process: the mean of all ranks' gradients. The sum of the losses by step."""
    import torch

    model = network("find_unused_parameters" in options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    every = [batches(rank) for rank in range(world)]
    seen = []
    for step in range(STEPS):
        total = sum(
            torch.nn.functional.cross_entropy(model(x), y)
            for x, y in (every[rank][step] for rank in range(world))
        )
        (total / world).backward()
        seen.append(float(total.detach()))
        if not skips(step, options):
            optimizer.step()
            optimizer.zero_grad()
    return seen


def together(rank: Rank, folder: str, options: dict[str, bool]) -> list[float]:
    import torch
    from torch.nn.parallel import DistributedDataParallel

    with process_group(rank, folder, name=str(sorted(options))) as dist:
        plain = network("find_unused_parameters" in options)
        model = DistributedDataParallel(plain, bucket_cap_mb=0.01, **options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        seen = []
        for step, (x, y) in enumerate(batches(rank.index)):
            loss = torch.nn.functional.cross_entropy(model(x), y)
            if skips(step, options):
                with model.no_sync():
                    loss.backward()
            else:
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            dist.all_reduce(total := loss.detach().clone())
            seen.append(float(total))
    return seen


def ddp(rank: Rank, folder: str) -> None:
    for options in DDP_OPTIONS:
        expected = alone(rank.world, options)
        assert expected[-1] < expected[0]
        assert together(rank, folder, options) == pytest.approx(expected, rel=1e-4), options


@pytest.mark.timeout(120)
@pytest.mark.parametrize("world", [2, 4])
def test_ddp_trains_as_one_process_does(tmp_path: Path, world: int) -> None:
    launch(ddp, str(tmp_path), ranks=world, timeout=110)


def profiled(rank: Rank, folder: str) -> None:
    import torch

    with process_group(rank, folder) as dist:
        with torch.profiler.profile(record_shapes=True) as profile:
            dist.all_reduce(torch.ones(7, 9))
            if rank.index == 0:
                dist.send(torch.ones(3), 1)
            else:
                dist.recv(torch.ones(3), 0)
            dist.barrier()
        shapes = {event.key: event.input_shapes for event in profile.key_averages(True)}
        assert shapes["rdmatx:all_reduce"] == [[7, 9]]
        assert "rdmatx:barrier" in shapes
        assert ("rdmatx:send" if rank.index == 0 else "rdmatx:recv") in shapes


def test_the_profiler_shows_names_and_shapes(tmp_path: Path) -> None:
    launch(profiled, str(tmp_path), ranks=2)


def in_detail(rank: Rank, folder: str) -> str:
    import torch

    with process_group(rank, folder) as dist:
        dist.all_reduce(tensor := torch.ones(5))
        assert torch.all(tensor == rank.world)
        different = {
            0: lambda: dist.all_reduce(torch.ones(5)),
            1: lambda: dist.all_gather([torch.ones(5)] * 2, torch.ones(5)),
        }
        with pytest.raises(RuntimeError) as caught:
            different[rank.index]()
        return str(caught.value)


def test_debug_mode(tmp_path: Path) -> None:
    """Torch wraps the backend, and finds calls that differ itself."""
    texts = launch(
        in_detail, str(tmp_path), ranks=2, environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    )
    for text in texts:
        assert "ALLREDUCE" in text or "ALLGATHER" in text


def meshed(rank: Rank, folder: str) -> None:
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    with process_group(rank, folder):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
        whole = torch.arange(32.0).view(8, 4)
        split = distribute_tensor(whole, mesh["model"], [Shard(0)])
        assert split.to_local().shape == (4, 4)
        product = split @ torch.distributed.tensor.distribute_tensor(
            torch.eye(4), mesh["model"], [torch.distributed.tensor.Replicate()]
        )
        assert torch.equal(product.full_tensor(), whole)


def test_device_mesh(tmp_path: Path) -> None:
    launch(meshed, str(tmp_path), ranks=4)


REGISTERED = """
import sys
import torch
loaded = sorted(name for name in sys.modules if name.split(".")[0] == "rdmatx")
print(torch.distributed.is_backend_available("rdmatx"), loaded)
"""


def test_import_torch_registers_the_backend(tmp_path: Path) -> None:
    """By the entry point, and without importing anything but that function's module."""
    metadata = tmp_path / "rdmatx_entry-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rdmatx-entry\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(entry_points())
    done = subprocess.run(
        [sys.executable, "-c", REGISTERED],
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout.strip() == "True ['rdmatx', 'rdmatx.autoload']", done.stderr


def entry_points() -> str:
    """What pyproject.toml declares, as an installed package would have it."""
    text = (ROOT / "pyproject.toml").read_text()
    _, _, rest = text.partition('[project.entry-points."torch.backends"]\n')
    line = rest.partition("\n")[0]
    return "[torch.backends]\n" + line.replace('"', "") + "\n"


def test_a_torch_it_was_not_built_for_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from rdmatx import torch as backend
    from rdmatx.errors import UnavailableError

    monkeypatch.setattr(torch, "__version__", "1.2.3")
    with pytest.raises(UnavailableError, match=r"and torch 1\.2\.3 is installed") as caught:
        backend._load_extension()
    assert "pip install --no-build-isolation" in str(caught.value)

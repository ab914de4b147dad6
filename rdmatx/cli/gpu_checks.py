"""What `rdmatx doctor` says of GPUs: which there are, and how NICs can reach their memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rdmatx.cli.checks import Check

# Modules of the kernel that let a NIC register the addresses of a GPU's memory.
PEER_MEMORY_MODULES = ("nvidia_peermem", "nv_peer_mem")


def check_gpus(root: Path = Path("/")) -> Iterator[Check]:
    """Each GPU that the driver shows, or why there is none, which is no fault."""
    from rdmatx._C import gpu_report

    report = gpu_report()
    if not report["available"]:
        yield Check("GPU", "fine", f"no GPU: {report['reason']}")
        return
    peer_memory = any((root / "sys/module" / name).is_dir() for name in PEER_MEMORY_MODULES)
    for gpu in report["gpus"]:
        subject = f"GPU {gpu['number']}: {gpu['name']} at {gpu['pci_address']} ({report['driver']})"
        if gpu["exports_dma_bufs"]:
            yield Check("GPU", "fine", f"{subject}; its memory can be registered by dma-buf")
        elif peer_memory:
            yield Check("GPU", "fine", f"{subject}; its memory can be registered by peer memory")
        else:
            yield Check(
                "GPU",
                "hint",
                f"{subject}; NICs do not reach its memory, so transfers go through the host's",
                "install the open kernel modules of the NVIDIA driver, which export dma-bufs, or as "
                "root: modprobe nvidia-peermem",
            )

"""What `rdmatx doctor` looks at: one function a question, each answered with a remedy.

Every function reads files under ``root`` (``/`` but in tests) or asks the process itself; none
changes anything.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rdmatx.cli.output import format_bytes
from rdmatx.sysfs import names as _names
from rdmatx.sysfs import read as _read

# fine: as it should be; hint: works, could be faster; problem: something will not work.
Verdict = Literal["fine", "hint", "problem"]

# What rdmatx comfortably needs: windows, queues and staging of a few connections.
COMFORTABLE_MEMLOCK = 1 << 30
COMFORTABLE_SHM = 256 << 20
PORT_STATE_REMEDIES = {
    "DOWN": "check the cable and bring its network device up: ip link set NETDEV up",
    "INIT": "the subnet has no manager: start one (opensm) or turn it on in the switch",
    "ARMED": "the subnet manager is setting the port up: try again in a moment",
}
# PCI vendors of RDMA NICs, and the module that serves them.
RDMA_VENDORS = {
    "0x15b3": ("NVIDIA Mellanox", "mlx5_ib"),
    "0x14e4": ("Broadcom", "bnxt_re"),
    "0x1425": ("Chelsio", "iw_cxgb4"),
    "0x1dd8": ("AMD Pensando", "ionic_rdma"),
    "0x1d0f": ("Amazon", "efa"),
}


@dataclass(frozen=True)
class Check:
    """One answer: ``finding`` is what was found, ``remedy`` what to do (empty where it is fine)."""

    name: str
    verdict: Verdict
    finding: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """The check as an object."""
        return asdict(self)


def check_kernel(root: Path = Path("/")) -> Check:
    """Whether the kernel has verbs for user space, and soft-RoCE for those without a NIC."""
    if (root / "sys/class/infiniband_verbs").is_dir():
        return Check("kernel", "fine", "the kernel offers verbs to user space (ib_uverbs)")
    release = os.uname().release
    modules = root / "lib/modules" / release
    known = _read(modules / "modules.dep") + _read(modules / "modules.builtin")
    if "ib_uverbs" in known:
        return Check(
            "kernel",
            "problem",
            "the kernel has RDMA, but its module ib_uverbs is not loaded",
            "as root: modprobe ib_uverbs"
            + (" && modprobe rdma_rxe" if "rdma_rxe" in known else ""),
        )
    return Check(
        "kernel",
        "problem",
        f"kernel {release} has no RDMA support: neither built in nor as a module",
        "install a kernel with CONFIG_INFINIBAND_USER_ACCESS (Debian, Ubuntu: linux-image-generic "
        "or linux-modules-extra), or use `rdmatx lab`, which brings one of its own",
    )


def check_driver(root: Path = Path("/")) -> Iterator[Check]:
    """RDMA NICs on the PCI bus that no RDMA driver serves."""
    served = {
        os.path.realpath(root / "sys/class/infiniband" / name / "device")
        for name in _names(root / "sys/class/infiniband")
    }
    bus = root / "sys/bus/pci/devices"
    for name in _names(bus):
        vendor, module = RDMA_VENDORS.get(_read(bus / name / "vendor"), ("", ""))
        is_network = _read(bus / name / "class").startswith("0x02")
        if vendor and is_network and os.path.realpath(bus / name) not in served:
            yield Check(
                "driver",
                "hint",
                f"a {vendor} network card at {name} has no RDMA device",
                f"if the card speaks RDMA, as root: modprobe {module}",
            )


def check_ports(root: Path = Path("/")) -> Iterator[Check]:
    """The state of every port of every RDMA device."""
    devices = root / "sys/class/infiniband"
    for device in _names(devices):
        for port in _names(devices / device / "ports"):
            state = _read(devices / device / "ports" / port / "state").partition(":")[2].strip()
            name = f"port {device}/{port}"
            if state == "ACTIVE":
                rate = _read(devices / device / "ports" / port / "rate")
                yield Check(name, "fine", f"ACTIVE{', ' + rate if rate else ''}")
            else:
                remedy = PORT_STATE_REMEDIES.get(state, PORT_STATE_REMEDIES["DOWN"])
                yield Check(name, "problem", state or "its state cannot be read", remedy)


def check_permissions(root: Path = Path("/")) -> Check | None:
    """Whether this user may open the devices' files; ``None`` where there are none."""
    folder = root / "dev/infiniband"
    files = [folder / name for name in _names(folder) if name.startswith("uverbs")]
    if not files:
        return None
    refused = [str(path) for path in files if not os.access(path, os.R_OK | os.W_OK)]
    if not refused:
        return Check("permissions", "fine", "this user may open the verbs devices")
    return Check(
        "permissions",
        "problem",
        f"this user may not open {', '.join(refused)}",
        f"as root: chmod 0666 {' '.join(refused)} (rdma-core's udev rules do it for good)",
    )


def check_topology(root: Path = Path("/")) -> Check | None:
    """Whether each GPU has a NIC nearby; ``None`` where there is nothing to compare."""
    from rdmatx.topology import UNKNOWN_DISTANCE, read_topology

    topology = read_topology(root)
    known = [
        (gpu, rails, rails.distance)
        for gpu, rails in zip(topology.gpus, topology.rails, strict=True)
        if rails.distance is not None and rails.distance.between_nodes != UNKNOWN_DISTANCE
    ]
    far = [gpu for gpu, _, distance in known if distance.kind == "SYS"]
    if not known:
        return None
    if not far:
        farthest = max((distance for _, _, distance in known), key=lambda distance: distance.rank)
        what = f"each GPU has its NIC near it: at most {farthest.kind}, {farthest}"
        return Check("GPUs and NICs", "fine", what)
    which = ", ".join(f"{gpu.index} ({gpu.address}, NUMA node {gpu.numa_node})" for gpu in far)
    return Check(
        "GPUs and NICs",
        "hint",
        f"no NIC that serves is on the NUMA node of GPU {which}",
        "see `rdmatx topo`: bring up a NIC on that node, put one into a slot of it, or use other "
        "GPUs",
    )


def check_memlock() -> Check:
    """How much memory this process may register."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return Check("locked memory", "fine", "unlimited")
    if _may_lock_anything():
        return Check("locked memory", "fine", "unlimited for this user (CAP_IPC_LOCK)")
    amount = format_bytes(soft)
    if soft >= COMFORTABLE_MEMLOCK:
        return Check("locked memory", "fine", f"up to {amount} may be registered")
    raise_soft = "ulimit -l unlimited" if hard == resource.RLIM_INFINITY else ""
    return Check(
        "locked memory",
        "hint",
        f"an RDMA device can register only {amount} for this user (RLIMIT_MEMLOCK); the software "
        "HCA does not mind",
        raise_soft
        or "add `* - memlock unlimited` to /etc/security/limits.conf and log in again; in a "
        "container: --ulimit memlock=-1; under systemd: LimitMEMLOCK=infinity",
    )


def _may_lock_anything() -> bool:
    """Whether this process has CAP_IPC_LOCK (bit 14)."""
    for line in _read(Path("/proc/self/status")).splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) >> 14 & 1)
    return False


def check_cross_memory(root: Path = Path("/")) -> Check:
    """Whether processes of one user may copy from each other directly (the software HCA does)."""
    name = "cross-memory attach"
    refusal = _probe_cross_memory()
    if refusal:
        return Check(
            name,
            "hint",
            f"process_vm_readv is refused ({errno.errorcode.get(refusal, refusal)}), so the "
            "software HCA copies twice, through shared memory",
            "in a container: --cap-add SYS_PTRACE, or a seccomp profile that allows it",
        )
    scope = _read(root / "proc/sys/kernel/yama/ptrace_scope")
    if scope in ("2", "3"):
        return Check(
            name,
            "hint",
            f"kernel.yama.ptrace_scope is {scope}, so the software HCA copies twice, through "
            "shared memory",
            "as root: sysctl kernel.yama.ptrace_scope=1"
            if scope == "2"
            else "boot with another value: 3 cannot be taken back",
        )
    return Check(name, "fine", "processes of one user may copy from each other directly")


def _probe_cross_memory() -> int:
    """The errno of a copy from this process to itself: 0, or what a seccomp filter answers."""

    class Iovec(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    source = ctypes.create_string_buffer(b"x", 1)
    target = ctypes.create_string_buffer(1)
    here = Iovec(ctypes.addressof(target), 1)
    there = Iovec(ctypes.addressof(source), 1)
    readv = ctypes.CDLL(None, use_errno=True).process_vm_readv
    readv.restype = ctypes.c_ssize_t
    count = readv(os.getpid(), ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return 0 if count == 1 else ctypes.get_errno()


def check_shared_memory(folder: Path = Path("/dev/shm")) -> Check:
    """Whether /dev/shm has room for the software HCA's queues and ``rdmatx.empty``."""
    try:
        space = os.statvfs(folder)
    except OSError:
        return Check(
            "shared memory",
            "problem",
            f"{folder} is not there: the software HCA cannot reach other processes",
            f"as root: mkdir -p {folder} && mount -t tmpfs tmpfs {folder}",
        )
    if not os.access(folder, os.W_OK):
        return Check(
            "shared memory", "problem", f"this user may not write to {folder}",
            f"as root: chmod 1777 {folder}",
        )  # fmt: skip
    free = space.f_bavail * space.f_frsize
    if free < COMFORTABLE_SHM:
        return Check(
            "shared memory",
            "hint",
            f"only {format_bytes(free)} are free in {folder}",
            f"in a container: --shm-size=1g; else as root: mount -o remount,size=2g {folder}",
        )
    return Check("shared memory", "fine", f"{format_bytes(free)} free in {folder}")


def check_congestion_control(root: Path = Path("/")) -> Check | None:
    """BBR halves TCP over the loopback; ``None`` where the system does not say what it uses."""
    control = _read(root / "proc/sys/net/ipv4/tcp_congestion_control")
    if not control:
        return None
    if control != "bbr":
        return Check("TCP", "fine", f"congestion control is {control}")
    return Check(
        "TCP",
        "hint",
        "congestion control is bbr, which halves the speed of TCP inside one host",
        "nothing to do for rdmatx, which chooses per socket; for others: "
        "sysctl net.ipv4.tcp_congestion_control=cubic",
    )


def check_huge_pages(root: Path = Path("/")) -> Check | None:
    """Whether large buffers can get huge pages: copies between processes gain two to three times."""
    text = _read(root / "sys/kernel/mm/transparent_hugepage/enabled")
    if "[" not in text:
        return None
    mode = text.partition("[")[2].partition("]")[0]
    if mode != "never":
        return Check("huge pages", "fine", f"transparent huge pages: {mode}")
    return Check(
        "huge pages",
        "hint",
        "transparent huge pages are off; copies of large buffers between processes are slower",
        "as root: echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
    )


def check_machine() -> Check:
    """The processor and its cores."""
    cores = len(os.sched_getaffinity(0))
    what = f"{platform.machine()}, {cores} core{'s' if cores > 1 else ''} for this process"
    if cores > 1:
        return Check("processor", "fine", what)
    return Check(
        "processor", "hint", f"{what}: two processes share it by time slice",
        "give the process two cores or more, as with taskset or --cpus",
    )  # fmt: skip

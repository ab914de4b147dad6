"""Configures and compiles the kernel, and puts it into the cache."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from rdmatx.errors import UnavailableError
from rdmatx.lab import cache, source, tools

Progress = Callable[[str, str], None]

DISK_BYTES = 2_000_000_000
SHOWN_LOG_LINES = 15
REGISTER_BYTES = 12288  # AMX needs 10,752; the kernel's stack order in kernel.config goes with it


def build_kernel(
    given: Path | None, *, force: bool = False, progress: Progress | None = None
) -> Path:
    """The path of a kernel with the present options, built where the cache has none.

    Raises what ``rdmatx.lab.build`` documents.
    """
    report = progress or _silent
    tools.require_machine()
    if os.environ.get(cache.KERNEL_VARIABLE):
        named = cache.find_kernel()
        assert named is not None
        return named
    chosen = source.given_source(given) if given else None
    if not force and (built := _already_built(chosen)):
        return built
    tools.require({**tools.BUILD_PACKAGES, **tools.HEADER_PACKAGES}, "building the lab's kernel")
    with cache.build_lock(lambda: report("wait", "another build is running; waiting for it")):
        # Whoever held the lock may have built what is wanted here.
        if not force and (built := _already_built(chosen)):
            return built
        return _build_locked(chosen, force, report)


def missing_options(fragment: str, made: str) -> list[str]:
    """The options of ``fragment`` that the configuration ``made`` has not, as NAME=value."""
    have = cache.parse_fragment(made)
    wanted = cache.parse_fragment(fragment)
    return [f"{name}={value}" for name, value in wanted.items() if have.get(name) != value]


def widen_registers(out: Path) -> None:
    """Makes room in the build tree ``out`` for processors with AMX.

    Linux before 6.13 keeps a process's vector registers in a buffer of fixed size, smaller
    than what ptrace(2) demands where the processor has AMX, and so cannot start a process
    there. The size is a constant generated from this listing; a larger one serves every
    processor, because the host takes from it what it needs. Later kernels have no such line.
    """
    listing = out / "arch" / "x86" / "um" / "user-offsets.s"
    text = listing.read_text()
    wider = re.sub(
        r"(->HOST_FP_SIZE \$?)\d+", lambda match: f"{match[1]}{REGISTER_BYTES // 8}", text
    )
    if wider != text:
        listing.write_text(wider)


def _silent(phase: str, detail: str) -> None:
    """The progress of those who asked for none."""


def _already_built(chosen: source.Source | None) -> Path | None:
    """The cached kernel that serves; that of a given tree only where the versions agree."""
    if chosen is None:
        return cache.find_kernel()
    if not chosen.is_tree:
        return None
    path = cache.kernel_path(source.tree_version(chosen.path))
    return path if os.access(path, os.X_OK) else None


def _build_locked(chosen: source.Source | None, force: bool, report: Progress) -> Path:
    root = cache.cache_root()
    # What a killed build left behind; nobody else builds now.
    for stale in root.glob(".build-*"):
        shutil.rmtree(stale, ignore_errors=True)
    free = shutil.disk_usage(root).free
    if free < DISK_BYTES:
        raise UnavailableError(
            f"building needs {DISK_BYTES / 1e9:.0f} GB in {root} for a few minutes and "
            f"{free / 1e9:.1f} GB are free: set XDG_CACHE_HOME to a folder with room"
        )
    work = Path(tempfile.mkdtemp(prefix=".build-", dir=root))
    try:
        if chosen is None:
            report("fetch", "the distribution's kernel source")
            chosen = source.fetch_source(work)
        tree = chosen.path
        if not chosen.is_tree:
            report("unpack", chosen.path.name)
            tree = work / "tree"
            source.unpack(chosen.path, tree)
        path = cache.kernel_path(source.tree_version(tree))
        if force or not path.exists():
            _compile(tree, work, report)
            _install(work / "out", path)
        report("done", str(path))
        return path
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _compile(tree: Path, work: Path, report: Progress) -> None:
    """Leaves the kernel of ``tree`` at ``work/out/linux``."""
    out = work / "out"
    out.mkdir()
    log = cache.cache_root() / "build.log"
    make = ["make", "-C", str(tree), "ARCH=um", f"O={out}"]
    report("configure", source.tree_version(tree))
    with log.open("w") as lines:
        _make([*make, "allnoconfig"], lines.fileno(), None, log)
        missing = missing_options(cache.FRAGMENT.read_text(), (out / ".config").read_text())
        if missing:
            raise UnavailableError(
                f"Linux {source.tree_version(tree)} did not take these options of "
                f"{cache.FRAGMENT}: {', '.join(missing)}"
            )
        _make([*make, "prepare"], lines.fileno(), None, log)
        widen_registers(out)
        jobs = len(os.sched_getaffinity(0))
        _make([*make, f"-j{jobs}", "linux"], lines.fileno(), report, log)
    log.unlink()


def _make(command: list[str], log_fd: int, report: Progress | None, log: Path) -> None:
    """Runs make with its output in the log; reports the number of compiled files."""
    environment = {
        **{k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")},
        "KCONFIG_ALLCONFIG": str(cache.FRAGMENT),
        "LC_ALL": "C",
    }
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        env=environment,
    )
    compiled = 0
    try:
        assert process.stdout is not None
        for line in process.stdout:
            os.write(log_fd, line)
            if report and line.lstrip().startswith((b"CC ", b"AS ")):
                compiled += 1
                report("compile", f"{compiled} files")
        status = process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:])
        raise UnavailableError(
            f"the kernel did not build (make exited {status}); its log is {log} and ends with:\n"
            f"{tail}"
        )


def _install(out: Path, path: Path) -> None:
    """Moves the kernel and its configuration into the cache in one step."""
    fresh = Path(tempfile.mkdtemp(prefix=".build-", dir=cache.cache_root()))
    shutil.copy2(out / "linux", fresh / "linux")
    shutil.copy2(out / ".config", fresh / "config")
    (fresh / "linux").chmod(0o755)
    fresh.chmod(0o755)
    if path.parent.exists():
        # A kernel that runs keeps its file; only the name goes to the new one.
        for name in ("config", "linux"):
            os.replace(fresh / name, path.parent / name)
        fresh.rmdir()
    else:
        os.rename(fresh, path.parent)

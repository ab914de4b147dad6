"""Where built kernels are kept, and under which name."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rdmatx.errors import UnavailableError

FRAGMENT = Path(__file__).resolve().parent / "kernel.config"
REVISION = 1  # to be raised when kernel.py builds differently from the same options
KERNEL_VARIABLE = "RDMATX_LAB_KERNEL"


def cache_root() -> Path:
    """The lab's folder: ``$XDG_CACHE_HOME/rdmatx/lab``, by default ``~/.cache/rdmatx/lab``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says that a relative path is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "rdmatx" / "lab"


def fragment_hash(text: str | None = None) -> str:
    """Twelve hexadecimal digits that name the options of a configuration fragment.

    Comments, blank lines and order do not count, so that editing them rebuilds nothing.
    """
    options = parse_fragment(FRAGMENT.read_text() if text is None else text)
    canonical = f"revision {REVISION}\n" + "\n".join(
        f"{name}={value}" for name, value in sorted(options.items())
    )
    return hashlib.sha256(canonical.encode()).hexdigest()[:12]


def parse_fragment(text: str) -> dict[str, str]:
    """The ``CONFIG_NAME=value`` lines of a fragment or of a ``.config``, by name."""
    return dict(re.findall(r"^(CONFIG_\w+)=(.*)$", text, flags=re.MULTILINE))


def version_key(version: str) -> tuple[int, ...]:
    """Orders versions by their leading numbers: 6.12.117 after 6.12.9 after 6.1."""
    match = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in match.group().split(".")) if match else ()


def kernel_path(version: str) -> Path:
    """Where the kernel of this version, with the present options, is or will be."""
    return cache_root() / f"{version}-{fragment_hash()}" / "linux"


def find_kernel() -> Path | None:
    """The kernel to boot: ``$RDMATX_LAB_KERNEL``, else the newest in the cache, else None.

    Raises ``UnavailableError`` where the variable names something that cannot be executed.
    """
    named = os.environ.get(KERNEL_VARIABLE)
    if named:
        path = Path(named).absolute()
        if not path.is_file() or not os.access(path, os.X_OK):
            raise UnavailableError(
                f"{KERNEL_VARIABLE}={named} is not an executable file: "
                f"name a built kernel, or unset it and run `rdmatx lab build`"
            )
        return path
    built = [p for p in cache_root().glob(f"*-{fragment_hash()}/linux") if os.access(p, os.X_OK)]
    return max(built, key=lambda path: version_key(path.parent.name), default=None)


@contextlib.contextmanager
def build_lock(waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the cache for one builder; calls ``waiting`` once where another has it."""
    root = cache_root()
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = (root / "build.lock").open("w")
    except OSError as error:
        raise UnavailableError(
            f"the lab's cache {root} is not writable ({error.strerror}): set XDG_CACHE_HOME"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield

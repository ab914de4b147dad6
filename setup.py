"""Builds the C++ core with CMake, and the backend for torch.distributed where there is a torch; everything
else is in pyproject.toml."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def run(command: list[str]) -> None:
    """Runs CMake; where it fails, its own words are what matters, not a traceback of this file."""
    status = subprocess.run(command, check=False).returncode
    if status != 0:
        raise SystemExit(
            f"{' '.join(command)} failed (exit status {status}); its reason stands above"
        )


def wants_torch() -> bool:
    """Whether the backend is built, too: RDMATX_TORCH=1 or 0, else whether the build sees a torch (which it
    does not in the isolated environment that pip makes unless it is told --no-build-isolation)."""
    choice = os.environ.get("RDMATX_TORCH", "")
    return choice == "1" or (choice != "0" and importlib.util.find_spec("torch") is not None)


class CMakeBuild(build_ext):
    """Runs CMake once and lets it install the core and the extensions into the package."""

    def build_extension(self, ext: Extension) -> None:
        source = Path(__file__).resolve().parent
        package = Path(self.get_ext_fullpath(ext.name)).resolve().parent
        build = Path(os.environ.get("RDMATX_BUILD_DIR", self.build_temp)).resolve()
        build.mkdir(parents=True, exist_ok=True)
        cmake = shutil.which("cmake")
        if cmake is None:
            raise SystemExit("rdmatx needs CMake 3.22 or newer to build: pip install cmake")
        configure = [
            cmake,
            "-S",
            str(source),
            "-B",
            str(build),
            f"-DCMAKE_BUILD_TYPE={os.environ.get('RDMATX_BUILD_TYPE', 'Release')}",
            f"-DCMAKE_INSTALL_PREFIX={package}",
            f"-DPython_EXECUTABLE={sys.executable}",
            "-DRDMATX_BUILD_TESTS=OFF",
            f"-DRDMATX_TORCH={'ON' if wants_torch() else 'OFF'}",
        ]
        if shutil.which("ninja") and not (build / "Makefile").exists():
            configure += ["-G", "Ninja"]
        configure += os.environ.get("RDMATX_CMAKE_ARGS", "").split()
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        run(configure)
        parts = {"_C": "python", **({"_torch": "torch"} if wants_torch() else {})}
        run([cmake, "--build", str(build), "--target", *parts, "--parallel", jobs])
        for component in parts.values():
            run([cmake, "--install", str(build), "--component", component])

    def copy_extensions_to_source(self) -> None:
        """In-place and editable builds: what else was built goes beside the extension, too."""
        super().copy_extensions_to_source()
        built = Path(self.build_lib) / "rdmatx"
        for pattern in ("librdmatx_core.so*", "torch/_C*.so", "torch/built_for.txt"):
            for file in built.glob(pattern):
                target = Path(__file__).resolve().parent / "rdmatx" / file.relative_to(built)
                self.copy_file(str(file), str(target))


setup(ext_modules=[Extension("rdmatx._C", sources=[])], cmdclass={"build_ext": CMakeBuild})

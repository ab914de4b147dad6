"""Builds the C++ core with CMake; everything else is in pyproject.toml."""

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


class CMakeBuild(build_ext):
    """Runs CMake once and lets it install the core and the extension into the package."""

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
        ]
        if shutil.which("ninja") and not (build / "Makefile").exists():
            configure += ["-G", "Ninja"]
        configure += os.environ.get("RDMATX_CMAKE_ARGS", "").split()
        jobs = os.environ.get("CMAKE_BUILD_PARALLEL_LEVEL", str(os.cpu_count() or 1))
        run(configure)
        run([cmake, "--build", str(build), "--target", "_C", "--parallel", jobs])
        run([cmake, "--install", str(build), "--component", "python"])

    def copy_extensions_to_source(self) -> None:
        """In-place and editable builds: the core goes beside the extension that is linked with it."""
        super().copy_extensions_to_source()
        for core in (Path(self.build_lib) / "rdmatx").glob("librdmatx_core.so*"):
            self.copy_file(str(core), str(Path(__file__).resolve().parent / "rdmatx" / core.name))


setup(ext_modules=[Extension("rdmatx._C", sources=[])], cmdclass={"build_ext": CMakeBuild})

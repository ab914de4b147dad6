"""Prints the requirements that pyproject.toml names, one a line: `requirements.py build test` prints those
of the build system and of the extra `test`, with the package's own dependencies.

The Makefile installs them first and rdmatx itself without build isolation, so that CMake's cache stays valid
from one build to the next.
"""

import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    from pip._vendor import tomli as tomllib


def requirements(groups: list[str]) -> list[str]:
    """The package's dependencies and those of each group; `build` is the build system's."""
    root = Path(__file__).resolve().parent.parent
    with (root / "pyproject.toml").open("rb") as file:
        pyproject = tomllib.load(file)
    found = list(pyproject["project"]["dependencies"])
    for group in groups:
        if group == "build":
            found += pyproject["build-system"]["requires"]
        else:
            found += pyproject["project"]["optional-dependencies"][group]
    return found


if __name__ == "__main__":
    print("\n".join(requirements(sys.argv[1:])))

"""``rdmatx lab``: the lab brings its own command line, which also works without the extension."""

from rdmatx.lab.cli import add_actions as configure
from rdmatx.lab.cli import execute

__all__ = ["configure", "execute"]

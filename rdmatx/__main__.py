"""``python -m rdmatx``: the same as the ``rdmatx`` command."""

import sys

from rdmatx.cli.main import main

sys.exit(main())

"""``python -m rdmatx.lab``: the lab's command line without the rest of rdmatx."""

from rdmatx.lab.cli import main

if __name__ == "__main__":
    raise SystemExit(main())

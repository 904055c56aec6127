"""The command `nnhal`: `main` finds its verbs."""

import sys


def start() -> None:
    """Entry point of the console script: a Ctrl-C while it is imported ends it as one later does."""
    try:
        from nnhal.cli.main import main

        main()
    except KeyboardInterrupt:
        print("nnhal: interrupted", file=sys.stderr)
        sys.exit(130)

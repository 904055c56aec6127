"""The command `nnhal`: `main` finds its verbs."""

import os
import signal
import sys
import threading
from typing import Any

INTERRUPTED = 130
PATIENCE = 0.8  # seconds
_struck: list[None] = []


def start() -> None:
    """Entry point of the console script: a Ctrl-C while it is imported ends it as one later does.

    After the verb it ends by the signal itself, wherever it is: what closes then cannot be half interrupted.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, or somebody else's
        signal.signal(signal.SIGINT, _interrupted)
        sys.unraisablehook = _unraisable
    try:
        from nnhal.cli.main import main

        try:
            main()
        except SystemExit as end:
            if _struck and end.code != INTERRUPTED:  # who took it for an error of its own went on, and came to an end
                raise KeyboardInterrupt from None
            raise
        except Exception:
            if _struck:  # Python itself makes errors of what strikes while a class is made
                raise KeyboardInterrupt from None
            raise
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupted(*_: Any) -> None:
    """Ends the command, even where a library takes the interrupt for an error of its own, as extensions do at import."""
    _struck.append(None)
    last = threading.Timer(PATIENCE, _end)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _unraisable(lost: Any) -> None:
    """An interrupt within a finalizer, where Python loses it, ends the command too."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(lost)


def _end() -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)

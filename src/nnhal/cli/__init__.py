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
    """Runs the console script; Ctrl-C ends it, also during imports.

    After the verb the signal itself ends the process, so that no cleanup is interrupted half way.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else the caller ignores or handles it
        signal.signal(signal.SIGINT, _interrupted)
        sys.unraisablehook = _unraisable
    try:
        from nnhal.cli.main import main

        try:
            main()
        except SystemExit as end:
            if _struck and end.code != INTERRUPTED:  # a library handled it as an error and went on
                raise KeyboardInterrupt from None
            raise
        except Exception:
            if _struck:  # Python turns an interrupt while it makes a class into an error
                raise KeyboardInterrupt from None
            raise
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _interrupted(*_: Any) -> None:
    """Ends the command, even if a library handles the interrupt as an error, as extension modules do at import."""
    _struck.append(None)
    last = threading.Timer(PATIENCE, _end)
    last.daemon = True
    last.start()
    raise KeyboardInterrupt


def _unraisable(lost: Any) -> None:
    """Ends the command after an interrupt in a finalizer, where Python drops the exception."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        _end()
    sys.__unraisablehook__(lost)


def _end() -> None:
    os.write(2, b"error: interrupted\n")
    os._exit(INTERRUPTED)

"""Work at the end of a process, also of a child of `multiprocessing`, which ends without `atexit` handlers."""

import atexit
import sys
from collections.abc import Callable


def at_end(call: Callable[[], object]) -> None:
    """Call this when the process ends in order."""
    atexit.register(call)
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None and processes.parent_process() is not None:
        from multiprocessing import util

        util.Finalize(None, call, exitpriority=0)

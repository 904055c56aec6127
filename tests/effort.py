"""How much work something is: the same number in every run, whatever else the machine does."""

import sys
from collections.abc import Callable
from typing import Any


def lines(work: Callable[[], object]) -> int:
    """How many lines of Python are executed on this thread."""
    count = 0

    def line(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    before = sys.gettrace()
    sys.settrace(lambda *_: line)
    try:
        work()
    finally:
        sys.settrace(before)
    return count

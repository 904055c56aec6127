"""Faulty drivers: `NNHAL_FAULT=stale-output nnhal devices --driver tests/suites/faulty/driver`. "" is the healthy one."""

import os

from .faults import made

VARIABLE = "NNHAL_FAULT"


def device() -> object:
    """The device with the fault that is asked for."""
    return made(os.environ.get(VARIABLE, ""))

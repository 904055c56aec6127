"""Questions that no driver may take long to answer."""

import time
from typing import Any

from nnhal.base.errors import DeviceUnavailable, MissedDeadline
from nnhal.ipc.client.pools import Packing
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire

QUERY_NS = 30_000_000_000  # a driver that has not answered by then hangs


def query(session: Session, message: wire.ClientCall, expect: type[Any], packing: Packing | None = None) -> Any:
    """Ask; who has not answered in time is given up: DeviceUnavailable."""
    end = time.monotonic_ns() + QUERY_NS
    try:
        return session.call(message, expect, packing, deadline=end)[0]
    except MissedDeadline:
        if time.monotonic_ns() < end:  # an answer
            raise
        seconds = QUERY_NS // 10**9
        where = f"device {session.welcome.name}"
        text = f"{where}: did not answer {wire.hal_name(message)} within {seconds} s; it is dropped"
        session.give_up(text)
        raise DeviceUnavailable(text) from None

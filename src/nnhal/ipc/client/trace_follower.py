"""Follows the traces of this process: while one runs, the service writes its spans into a log of it."""

import time
from collections.abc import Iterator

from nnhal.base import trace
from nnhal.base.errors import NnhalError
from nnhal.base.memory import Memory
from nnhal.ipc.client.endings import Endings
from nnhal.ipc.client.first_channel import FirstChannel
from nnhal.ipc.client.peer import ServicePeer
from nnhal.ipc.client.pools import ClientPools, Packing
from nnhal.ipc.protocol import wire


class TraceFollower:
    """The service's part in traces. Its log of one recording is a memory that the service holds until `unfollow`."""

    def __init__(
        self,
        peer: ServicePeer,
        first: FirstChannel,
        endings: Endings,
        pools: ClientPools,
        numbers: Iterator[int],
        pid: int,
        group: int,
    ) -> None:
        """numbers: for the logs. pid, group: the service's process, and the group of its session's numbers."""
        self._peer, self._first, self._endings, self._pools, self._numbers = peer, first, endings, pools, numbers
        self._pid, self._group = pid, group
        self._followed: trace.Recording | None = None
        self._log = 0  # the number of the service's trace log

    def follow(self, recording: trace.Recording) -> None:
        """Have the service write to a log of this recording, without a wait."""
        if self._peer.dead is not None or self._followed is recording:
            return
        self._followed = recording
        where, slots = self._peer.where, trace.SLOTS_OF_DRIVERS
        try:
            memory = Memory.allocate(trace.size_of(slots), "nnhal-trace")
            number, packing = next(self._numbers), Packing(self._pools, None)
            self._log = number  # also the number of an interrupted request
            self._first.send(wire.WriteTrace(number, packing.pool(memory), recording.since), packing.fds)
        except NnhalError as error:
            recording.notes.append(f"{where}: its process is not traced: {error}")
            self._log = 0
            return
        if trace.process.recording is not recording:  # it ended meanwhile, and may not have seen this log
            self._endings.release(number)
            self._log = 0 if self._log == number else self._log
            return
        remote = trace.Remote(where.removeprefix("device "), self._pid, self._group, memory.bytes(), slots)
        recording.remotes.append(remote)
        recording.look()

    def await_follow(self, recording: trace.Recording, until: float) -> None:
        """Wait until the service has started to record, but not past `until`."""
        memory = next((remote.memory for remote in recording.remotes if remote.group == self._group), None)
        while memory is not None and not trace.has_writer(memory):
            if time.monotonic() > until or self._peer.dead is not None:
                recording.notes.append(f"{self._peer.where}: did not start to trace in time; spans are missing")
                return
            # The service writes to the shared memory, and sends nothing.
            time.sleep(0.0005)

    def unfollow(self) -> None:
        """Stop the service from recording."""
        self._followed = None
        if self._log:
            self._endings.release(self._log)
            self._log = 0

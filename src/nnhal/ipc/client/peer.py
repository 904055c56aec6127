"""The service as its client sees it: its process, and the death of the session, which ends every wait and call."""

import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from nnhal.base.codes import LOOP_TIMEOUT_MAXIMUM_NS
from nnhal.base.descriptors import Owner
from nnhal.base.errors import Closed, DeadObject, DeviceUnavailable, NnhalError, copy_of_error
from nnhal.base.log import logger
from nnhal.base.threads import members
from nnhal.ipc.client.output import DriverProcess
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport.channel import NoProtocol
from nnhal.ipc.transport.peer_end import DYING_MS, ended, pidfd

HUNG_NS = 2_000_000_000  # past a deadline without an answer: the process hangs
HUNG_BESIDE_OTHERS_NS = LOOP_TIMEOUT_MAXIMUM_NS  # the same if its end would also cost other calls
_log = logger("driver")


class DeathRecipient(Protocol):
    """An object whose threads wait for the service."""

    @property
    def busy(self) -> bool:
        """Whether a thread waits, or will."""

    def session_died(self) -> None:
        """Wake the waiting threads."""


class ServicePeer:
    """Decides that a session is dead, once, and why; then wakes every recipient.

    dead: the error of every further call, None while the session lives. It never changes again. process: the service's,
    if it belongs to this client alone: it is killed when the session dies. watch: a pidfd of the service, or -1.
    holders: objects that only the service holds: contents of buffers, results behind fences. They delay the end of a slow
    process, as recipients do for which a thread waits.
    """

    def __init__(self, where: str, welcome: wire.Welcome, process: DriverProcess | None) -> None:
        self.where, self.process = where, process
        self.dead: NnhalError | None = None
        self._recipients: weakref.WeakSet[DeathRecipient] = weakref.WeakSet()
        self.holders: weakref.WeakSet[object] = weakref.WeakSet()
        self._name = welcome.name
        self._deciding = threading.Lock()
        self._on_death: list[Callable[[NnhalError], None]] = []
        self.watch = pidfd(welcome.pid if process is None else process.pid)
        self._own = Owner()
        self._own.fds.extend([self.watch] * (self.watch >= 0))

    def died(self, error: NnhalError, *, fate: bool = True) -> NnhalError:
        """End the session and wake every waiting thread; return the error to raise.

        fate: whether the message describes how the process ended. The driver is at fault if its process broke the
        protocol, or ended itself before this client ended it.
        """
        with self._deciding:
            if self.dead is not None:
                return copy_of_error(self.dead)
            text, own_end = str(error), ""
            if self.process is not None:
                if not ended(self.watch) and self.process.poll() is None:
                    self.process.kill()
                how = self.process.exit_description() if fate else ""
                if how and how not in text:
                    text = f"{self.where}: {how}: {text.removeprefix(f'{self.where}: ')}"
                own_end = self.process.exit_by_itself
            fault: Any = "protocol" if isinstance(error, NoProtocol) else own_end
            error = copy_of_error(error) if isinstance(error, Closed) else DeadObject(text)
            error.driver_fault = fault
            self.dead = error
        _log.debug("%s", error)
        self.wake_recipients()
        for call in self._on_death:
            call(error)
        return copy_of_error(error)

    def close(self) -> bool:
        """End a session that its owner closes, unless it is dead; return whether it was alive. Safe in finalizers."""
        alive = self.dead is None
        if alive:  # without the lock: a finalizer may run in a thread that holds it
            self.dead = Closed(f"{self.where}: the connection was closed")
        return alive

    def add_recipient(self, recipient: DeathRecipient) -> None:
        """Have a death wake a recipient, while it exists."""
        self._recipients.add(recipient)

    def wake_recipients(self) -> None:
        """Inform every recipient of the death."""
        for recipient in members(self._recipients):
            recipient.session_died()

    def on_death(self, call: Callable[[NnhalError], None]) -> None:
        """Register a callback for the service's death."""
        with self._deciding:
            if self.dead is None:
                self._on_death.append(call)
                return
        call(self.dead)

    def error(self, failed: wire.Failed) -> NnhalError:
        """Return the error that the service reported; a process that requests replacement is replaced."""
        error = error_from_wire(failed)
        if failed.recycle and self.process is not None:
            self.died(DeadObject(f"{self.where}: the process is replaced: {error}"), fate=False)
        return error

    def process_ended(self) -> NnhalError:
        """End the session because the process has ended."""
        how = "" if self.process is None else self.process.exit_description()
        return self.died(DeadObject(f"{self.where}: {how or 'the driver process died'}"))

    def confirm_death(self, text: str) -> NnhalError:
        """Return the error for a channel or queue that ended by itself: the process's death if that is the cause."""
        if self.dead is None and self.watch >= 0 and not ended(self.watch, DYING_MS):
            return DeadObject(text)
        return self.died(DeadObject(text))

    def give_up(self, why: str) -> None:
        """End a session whose service does not answer, and kill a process of this client alone."""
        self.died(DeadObject(why))

    def silent(self, name: str, patience: int) -> NnhalError:
        """Return the error for a process that did not answer a call without a deadline in time; the session ends."""
        text = f"device {self._name}: did not answer {name} within {patience // 10**9} s; it is dropped"
        self.give_up(text)
        return DeviceUnavailable(text)

    def look_whether_hangs(self, late: int) -> None:
        """End this client's own process if a call is `late` nanoseconds past its deadline without an answer.

        It may be slow: while other calls depend on it, it has longer.
        """
        if self.process is not None and late > HUNG_NS and (late > HUNG_BESIDE_OTHERS_NS or not self._has_others()):
            self.died(DeadObject(f"{self.where}: the driver process hangs and was killed"))

    def _has_others(self) -> bool:
        """Whether another call waits for the process, or would lose data that only it holds."""
        return bool(self.holders) or any(recipient.busy for recipient in members(self._recipients))

    def close_descriptor(self) -> None:
        """Close the descriptor of the process."""
        self._own.close()

    def forked(self) -> None:
        """Reset a forked child: the session is the parent's."""
        self.dead = Closed(f"{self.where}: belongs to the process that this one was forked from; compile again here")
        self._deciding = threading.Lock()
        self.close_descriptor()
        self.watch = -1

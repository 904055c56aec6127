"""The greeting of a service: the first message on a connection, and the checks of its answer."""

from typing import Any

from nnhal.base import trace
from nnhal.base.errors import DeadObject, DeviceUnavailable, MissedDeadline, NnhalError, ResourceExhausted
from nnhal.base.levels import Level
from nnhal.base.stacks import with_note
from nnhal.ipc.client.output import DriverProcess
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import error_from_wire
from nnhal.ipc.transport import _native
from nnhal.ipc.transport.channel import Channel, NoProtocol


class Greeting:
    """Greets the service at one place; every failure is the error of a device that is not available.

    process: the service's, if it belongs to this client alone.
    """

    def __init__(self, where: str, process: DriverProcess | None) -> None:
        self.where, self._process = where, process

    @trace.traced_method("ipc", "initialisation", "greet", detail=lambda self, *_: self.where)
    def exchange(self, channel: Channel, patience: int) -> wire.Welcome:
        """Greet, and return the answer, which comes within `patience` nanoseconds."""
        try:
            data, _ = channel.call(wire.encode(wire.Hello(wire.VERSION, _native.cpus())), (), patience)
            reply = wire.decode_reply(data)
        except (NoProtocol, wire.WireError) as error:
            raise self._unfit(f"is not a driver service: {error}") from None
        except (DeadObject, MissedDeadline) as error:
            how = "" if self._process is None else self._process.exit_description()
            fault = "" if self._process is None else self._process.exit_by_itself
            raise self._unfit(f"the driver process did not start: {how or error}", fault) from None
        if isinstance(reply, wire.Failed):
            raise self._refused(error_from_wire(reply))
        if not isinstance(reply, wire.Welcome) or reply.version != wire.VERSION:
            raise self._unfit(f"answered the greeting with {type(reply).__name__}, must be Welcome")
        if reply.level not in Level.__members__.values():
            raise self._unfit(f"has HAL version {reply.level}, must be 1 to {max(Level):d}")
        return reply

    def _unfit(self, why: str, fault: Any = "protocol") -> DeviceUnavailable:
        """Return the error of a failed greeting.

        fault: see `NnhalError.driver_fault`; used if the process belongs to this client.
        """
        error = DeviceUnavailable(f"{self.where}: {why}")
        error.driver_fault = "" if self._process is None else fault
        return error

    def _refused(self, error: NnhalError) -> NnhalError:
        """Return the error for a greeting that was answered by an error."""
        if isinstance(error, ResourceExhausted):
            return with_note(ResourceExhausted(f"{self.where}: {error}"), error.stack)
        what = "did not start" if self._process is not None else "refused the connection"
        unfit = self._unfit(f"the driver process {what}: {error}", "" if isinstance(error, MemoryError) else "exit")
        return with_note(unfit, error.stack)

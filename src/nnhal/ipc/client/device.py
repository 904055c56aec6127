"""A device in another process, as the runtime sees any device."""

from collections.abc import Sequence
from typing import Any

from nnhal.base.codes import DeviceStatus, DeviceType
from nnhal.base.errors import MissedDeadline, UnsupportedModel
from nnhal.base.levels import V1_2, V1_3, Level
from nnhal.hal.device import Capabilities, Device, Hints, Prepared, Verdict
from nnhal.hal.lowering import ask_about, lowered
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.ipc.client.buffer import RemoteBuffer
from nnhal.ipc.client.pools import Packing
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.query import query
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import capabilities_from_wire, model_to_wire, options_to_wire
from nnhal.model.graph import Model
from nnhal.model.layouts import LAYOUTS


class RemoteDevice(Device):
    """A device over one session. What it says of itself is asked once."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.name = session.welcome.name
        self.level = session.level
        self.confinement = dict(session.welcome.confinement)
        self.preferred_layout = next((layout for layout in LAYOUTS if layout == session.welcome.layout), None)
        if session.methods >= V1_2:
            self.version = str(self._query(wire.GetVersionString(), wire.Word).value)
            kind = self._query(wire.GetType(), wire.Word).value
            self.type = DeviceType(kind) if kind in DeviceType.__members__.values() else DeviceType.OTHER
            self.extensions = self._query(wire.GetSupportedExtensions(), wire.Names).names
        self.relaxations = self._query(wire.GetRelaxations(), wire.Names).names
        form = self._form(wire.GetCapabilities)
        self._capabilities = capabilities_from_wire(self._query(wire.GetCapabilities(form), wire.Stated), form)

    def _form(self, call: type[wire.ClientCall]) -> Level:
        form = wire.form_for(call, self.session.methods)
        if form is None:
            needs = call.forms[0]
            raise UnsupportedModel(f"device {self.name}: {call.method} needs level {needs}, it is at {self.level}")
        return form

    def _query(self, message: wire.ClientCall, expect: type[Any], packing: Packing | None = None) -> Any:
        return query(self.session, message, expect, packing)

    def capabilities(self) -> Capabilities:
        """As the driver stated them."""
        return self._capabilities

    def status(self) -> DeviceStatus:
        """Asked anew each time."""
        value = self._query(wire.GetStatus(), wire.Word).value
        return DeviceStatus(value) if value in DeviceStatus.__members__.values() else DeviceStatus.UNKNOWN

    def supports(self, model: Model) -> Sequence[Verdict]:
        """The driver's verdicts; operations that its level cannot express get a no, with the reason."""
        form = self._form(wire.GetSupportedOperations)
        hidden = next((pool.kind for pool in model.pools if not pool.mappable), "")
        if hidden:
            why = f"the model has constants in a {hidden}, which cannot be given to another process"
            return [Verdict(False, why)] * len(model.main.operations)

        def ask(part: Model) -> list[Verdict]:
            with self.session.carrying(part.pools) as packing:
                message = wire.GetSupportedOperations(form, model_to_wire(part, packing.pool))
                return [Verdict(ok, why) for ok, why in self._query(message, wire.Verdicts, packing).verdicts]

        return ask_about(model, self.level, ask) if self.level < V1_3 else ask(model)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Compile in the driver's process; the wait ends at the hints' deadline."""
        form = self._form(wire.PrepareModel)
        options = options_to_wire(hints.options, f"driver_options of {self.name}")
        newest = form >= V1_3
        preference = int(hints.preference) if form > Level.V1_0 else None
        priority, deadline = (int(hints.priority), hints.deadline or 0) if newest else (None, 0)

        low = lowered(model, self.level)
        prepared = RemotePrepared(self.session, model)
        with self.session.carrying(low.pools) as packing:
            whole = model_to_wire(low, packing.pool)
            number = prepared.number
            message = wire.PrepareModel(number, form, whole, preference, priority, deadline, hints.threads, options)
            pending = None
            try:
                pending = self.session.notified(message, packing, hints.deadline)
                told, _ = self.session.outcome(pending, hints.deadline)
            except MissedDeadline:
                if pending is not None and pending.came:  # an answer
                    raise
                raise MissedDeadline(f"device {self.name}: did not prepare the model by the deadline") from None
        if isinstance(told, wire.PreparedTraits):
            prepared.weights_consumed, prepared.changeable = told.weights_consumed, told.changeable
            if told.weights_consumed:
                self.session.pools.forget(low.pools)
        return prepared

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """A buffer in the driver's process."""
        self._form(wire.Allocate)
        return RemoteBuffer(self.session, desc, roles)

    def close(self) -> None:
        """End the connection."""
        self.session.close()

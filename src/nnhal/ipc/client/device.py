"""A device in another process, with the interface of any device."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from nnhal.base.answers import safe_repr
from nnhal.base.codes import DeviceStatus, DeviceType
from nnhal.base.errors import UnsupportedModel
from nnhal.base.levels import V1_2, V1_3, Level
from nnhal.base.names import printable
from nnhal.base.records import replace
from nnhal.hal.cache.files import Cache, CacheFiles
from nnhal.hal.code import CodeIdentity
from nnhal.hal.device import (
    FAST,
    NUMERICS_PREFIX,
    Capabilities,
    Considered,
    Device,
    Hints,
    Prepared,
    Verdict,
)
from nnhal.hal.lowering import ask_about, lowered
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.request import UNLIMITED, Control
from nnhal.ipc.client.buffer import RemoteBuffer
from nnhal.ipc.client.pools import Packing
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.session import Session
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import (
    capabilities_from_wire,
    claims_from_wire,
    model_to_wire,
    options_to_wire,
)
from nnhal.model.graph import Model
from nnhal.model.layouts import LAYOUTS

Preparation = TypeVar("Preparation", wire.PrepareModel, wire.PrepareModelFromCache)


class ConsideredElsewhere:
    """A model that a driver's process keeps since its driver considered it under some hints.

    It is known by a number, and released with the last reference.
    """

    __slots__ = ("_lease", "hints", "number", "session")

    def __init__(self, session: Session, hints: Hints) -> None:
        self.session, self.hints = session, hints
        self._lease = session.lease()
        self.number = self._lease.number


class DeviceFacts(NamedTuple):
    """The facts that a driver's process reports of its device.

    Only another driver changes it, so a difference means another device.
    """

    name: str
    origin: str
    version: str
    type: DeviceType
    level: Level
    extensions: frozenset[str]
    relaxations: frozenset[str]
    numerics: frozenset[str]
    preferred_layout: str | None
    capabilities: Capabilities
    code: bytes

    def difference(self, before: "DeviceFacts") -> str:
        """Describe the differences from an earlier statement, for a message; "" if there are none."""
        fields = zip(self._fields, self, before, strict=True)
        return "; ".join(_changed(what.replace("_", " "), now, then) for what, now, then in fields if now != then)


def _changed(what: str, now: object, then: object) -> str:
    return f"other {what}" if isinstance(now, Capabilities | bytes) else f"{what} is {_told(now)}, was {_told(then)}"


def _told(value: object) -> str:
    if isinstance(value, DeviceType):
        return value.name
    return (
        str(value) if isinstance(value, Level) else safe_repr(sorted(value) if isinstance(value, frozenset) else value)
    )


class RemoteDevice(Device):
    """A device over one session. Its attributes are queried once."""

    timely = True

    def __init__(self, session: Session) -> None:
        self.session = session
        self._kept: wire.CacheFileCounts | None = None
        self.name = session.welcome.name
        self.level = session.level
        self.confinement = {printable(part): printable(said) for part, said in session.welcome.confinement.items()}
        self.preferred_layout = next((layout for layout in LAYOUTS if layout == session.welcome.layout), None)
        if session.methods >= V1_2:
            self.version = str(self._query(wire.GetVersionString(), wire.TextReply).value)
            kind = self._query(wire.GetType(), wire.TextReply).value
            self.type = DeviceType(kind) if kind in DeviceType.__members__.values() else DeviceType.OTHER
            self.extensions = self._query(wire.GetSupportedExtensions(), wire.NamesReply).names
        said = self._query(wire.GetRelaxations(), wire.NamesReply).names
        self.relaxations = [each for each in said if not each.startswith(NUMERICS_PREFIX)]
        self.numerics = [FAST, *(each[len(NUMERICS_PREFIX) :] for each in said if each.startswith(NUMERICS_PREFIX))]
        form = self._form(wire.GetCapabilities)
        self._capabilities = capabilities_from_wire(
            self._query(wire.GetCapabilities(form), wire.CapabilitiesReply), form
        )

    @property
    def statement(self) -> DeviceFacts:
        """The facts that its process reported when the session began."""
        welcome = self.session.welcome
        said = frozenset(self.extensions), frozenset(self.relaxations), frozenset(self.numerics)
        facts = self.name, welcome.origin, self.version, self.type, self.level
        return DeviceFacts(*facts, *said, welcome.layout or None, self._capabilities, welcome.code)

    def _form(self, call: type[wire.ClientCall]) -> Level:
        form = wire.form_for(call, self.session.methods)
        if form is None:
            needs = call.forms[0]
            raise UnsupportedModel(
                f"device {self.name}: {call.method} requires HAL version {needs}, it has {self.level}"
            )
        return form

    def _query(self, message: wire.ClientCall, expect: type[Any], packing: Packing | None = None) -> Any:
        return self.session.call(message, expect, UNLIMITED, packing)[0]

    def capabilities(self) -> Capabilities:
        return self._capabilities

    def status(self) -> DeviceStatus:
        """Ask the driver; the answer may change at any time."""
        value = self._query(wire.GetStatus(), wire.TextReply).value
        return DeviceStatus(value) if value in DeviceStatus.__members__.values() else DeviceStatus.UNKNOWN

    def supports(self, model: Model) -> Sequence[Verdict]:
        """Return the driver's verdicts.

        Operations that its HAL version cannot express are rejected, with the reason.
        """
        form = self._form(wire.GetSupportedOperations)
        hidden = next((pool.kind for pool in model.pools if not pool.mappable), "")
        if hidden:
            why = f"the model has constants in a {hidden}, which another process cannot map"
            return [Verdict(False, why)] * len(model.main.operations)

        def ask(part: Model) -> list[Verdict]:
            with self.session.carrying(part.pools, UNLIMITED) as packing:
                message = wire.GetSupportedOperations(form, model_to_wire(part, packing.pool))
                return [Verdict(ok, why) for ok, why in self._query(message, wire.Verdicts, packing).verdicts]

        return ask_about(model, self.level, ask) if self.level < V1_3 else ask(model)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Return what the driver reports.

        Its process keeps the model and the driver's results. Below 1.3, only verdicts.
        """
        if self.session.methods < V1_3:
            return super().consider(model, hints)
        if any(not pool.mappable for pool in model.pools):
            return Considered(self.supports(model))
        kept = ConsideredElsewhere(self.session, hints)
        with self.session.carrying(model.pools, UNLIMITED) as packing:
            message = wire.Consider(
                kept.number,
                model_to_wire(model, packing.pool),
                int(hints.preference),
                int(hints.priority),
                hints.deadline or 0,
                hints.threads,
                options_to_wire(hints.options, f"driver_options of {self.name}"),
            )
            said = self._query(message, wire.SupportReply, packing)
        return claims_from_wire(said, kept)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Compile in the driver's process until the hints' deadline.

        A model that the process already keeps is not sent again.
        """
        prepared = RemotePrepared(self.session, model, hints.priority)
        number, control = self._considered(hints), Control(hints.deadline)
        if number:
            places = () if hints.worked_out is None or hints.worked_out.whole else hints.worked_out.operations
            with self._held(hints.cache, control) as cache:
                self._await(wire.PrepareConsidered(prepared.number, number, places, cache), control, None, prepared)
            if prepared.weights_consumed:
                self.session.pools.forget(model.pools)
            return prepared
        low = lowered(model, self.level)
        with self.session.carrying(low.pools, control) as packing, self._held(hints.cache, control) as cache:
            message = self._preparation(wire.PrepareModel, prepared.number, low, packing, hints, cache)
            self._await(message, control, packing, prepared)
        if prepared.weights_consumed:
            self.session.pools.forget(low.pools)
        return prepared

    def number_of_cache_files(self) -> CacheFiles:
        """Ask the driver; there are none below 1.2."""
        if self.session.methods < V1_2:
            return CacheFiles()
        self._kept = said = self._query(wire.GetNumberOfCacheFiles(), wire.CacheFileCounts)
        return CacheFiles(said.model, said.data)

    @property
    def code_identity(self) -> CodeIdentity:
        """Return what the driver's process reported with its numbers of cache files; below 1.2 nothing is cached."""
        if self._kept is None:
            self.number_of_cache_files()
        said = self._kept
        return (
            CodeIdentity.unlike_any("the device keeps none") if said is None else CodeIdentity(said.code, said.unknown)
        )

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """Restore a model in the driver's process."""
        prepared, control = RemotePrepared(self.session, outline, hints.priority), Control(hints.deadline)
        with self.session.carrying(outline.pools, control) as packing, self._held(hints.cache, control) as cache:
            message = self._preparation(wire.PrepareModelFromCache, prepared.number, outline, packing, hints, cache)
            self._await(message, control, packing, prepared)
        return prepared

    @contextmanager
    def _held(self, cache: Cache | None, control: Control) -> Iterator[int]:
        """Yield the number under which the service holds the cache files until the end of the block; 0 for none."""
        if cache is None:
            yield 0
            return
        lease = self.session.lease()
        try:
            message = wire.HoldFiles(lease.number, cache.token, len(cache.model_files), len(cache.data_files))
            self.session.call(message, wire.Acknowledged, control, fds=cache.files)
            yield lease.number
        finally:
            lease.release()

    def _considered(self, hints: Hints) -> int:
        """Return the number of what the driver's process keeps for these hints; 0 for nothing."""
        kept = None if hints.worked_out is None else hints.worked_out.given
        if not isinstance(kept, ConsideredElsewhere) or kept.session is not self.session:
            return 0
        return kept.number if kept.hints == replace(hints, worked_out=None, cache=None) else 0

    def _preparation(
        self, call: type[Preparation], number: int, model: Model, packing: Packing, hints: Hints, cache: int
    ) -> Preparation:
        form = self._form(call)
        newest = form >= V1_3
        preference = int(hints.preference) if form > Level.V1_0 else None
        priority, deadline = (int(hints.priority), hints.deadline or 0) if newest else (None, 0)
        whole = model_to_wire(model, packing.pool)
        options = options_to_wire(hints.options, f"driver_options of {self.name}")
        return call(number, form, whole, preference, priority, deadline, hints.threads, options, cache)

    def _await(
        self,
        message: wire.PrepareModel | wire.PrepareConsidered | wire.PrepareModelFromCache,
        control: Control,
        packing: Packing | None,
        prepared: RemotePrepared,
    ) -> None:
        """Send, and wait for the end of the preparation."""
        late = f"device {self.name}: did not prepare the model by the deadline"
        told, _ = self.session.outcome_of(message, control, packing, late)
        if isinstance(told, wire.PreparedTraits):
            prepared.weights_consumed, prepared.changeable = told.weights_consumed, told.changeable
            prepared.writes_later = told.writes_later

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        self._form(wire.Allocate)
        return RemoteBuffer(self.session, desc, roles)

    def close(self) -> None:
        self.session.close()

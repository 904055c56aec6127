"""Behaviour added to any device by wrapping it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, DeviceStatus, Preference, Priority
from nnhal.base.errors import OperationFailed
from nnhal.base.levels import V1_1, V1_2, V1_3, Level
from nnhal.base.records import replace
from nnhal.hal.background import FencedExecution, Notify
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.code import CodeIdentity
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Prepared, Verdict, identity_of
from nnhal.hal.fence import Fence
from nnhal.hal.lowering import lowered, refusals, stated_at, with_neighbours
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole
from nnhal.hal.memory_use import MemoryUse
from nnhal.hal.request import Control, Of, Request, Timing
from nnhal.model.graph import Model


class Wrapper(Device):
    """A device that does what another does; the others here change some of it."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner
        own = identity_of(inner)
        self.name, self.version, self.type, self.level, self.extensions = own[:5]
        self.relaxations, self.preferred_layout, self.numerics = own[5:]
        self.one_at_a_time, self.at_once = inner.one_at_a_time, inner.at_once
        answers = type(self).consider, type(self).supports
        self.asked_again = inner.asked_again or answers != (Wrapper.consider, Wrapper.supports)

    def capabilities(self) -> Capabilities:
        """Those of the device itself."""
        return self.inner.capabilities()

    def supports(self, model: Model) -> Sequence[Verdict | bool]:
        """The device's own verdicts, or those of a wrapper that has another `consider`."""
        if type(self).consider is not Wrapper.consider:
            return self.consider(model, Hints()).verdicts
        return self.inner.supports(model)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """What the device itself says, or the verdicts of a wrapper that has another `supports`."""
        if type(self).supports is not Wrapper.supports:
            return super().consider(model, hints)
        return self.inner.consider(model, hints)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """As the device does."""
        return self.inner.prepare(model, hints)

    def number_of_cache_files(self) -> CacheFiles:
        """As many as the device itself."""
        return self.inner.number_of_cache_files()

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """As the device does."""
        return self.inner.prepare_from_cache(outline, hints)

    @property
    def cached_as(self) -> Device:
        """The device itself, or whose files those are; this one where an author's own wrapper prepares something else."""
        kind = type(self)
        own = {each for each in kind.__mro__ if {"prepare", "prepare_from_cache"} & vars(each).keys()}
        return self.inner.cached_as if all(each.__module__.startswith("nnhal.") for each in own) else self

    @property
    def code_identity(self) -> CodeIdentity:
        """That of the device itself; not known where an author's own wrapper prepares something else."""
        if self.cached_as is not self:
            return self.cached_as.code_identity
        why = f"wrapper {type(self).__qualname__} prepares otherwise than the device in it, must be a Device to be kept"
        return CodeIdentity.unlike_any(why)

    def told(self, hints: Hints) -> Hints:
        """What the device itself is told."""
        return self.inner.told(hints)

    def status(self) -> DeviceStatus:
        """That of the device itself."""
        return self.inner.status()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """As the device does; the buffer knows its roles by the wrapped prepared models and by their own."""
        buffer = self.inner.allocate(desc, [replace(role, prepared=_unwrapped(role.prepared)) for role in roles])
        buffer.play(roles)
        return buffer

    def close(self) -> None:
        """Close the device itself."""
        self.inner.close()


class PreparedWrapper(Prepared):
    """A prepared model that does what another does."""

    def __init__(self, inner: Prepared, model: Model) -> None:
        self.inner, self.model, self.timely = inner, model, inner.timely
        self.one_at_a_time, self.profiles = inner.one_at_a_time, inner.profiles
        self.weights_consumed, self.changeable = inner.weights_consumed, inner.changeable
        self.writes_later = inner.writes_later
        self.trimmable = inner.trimmable
        inner.model = model

    def run(self, request: Request, control: Control) -> Timing | None:
        """As the prepared model does."""
        return self.inner.run(request, control)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """As the prepared model does."""
        self.inner.execute(request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """As the prepared model does."""
        return self.inner.execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        """As the prepared model does."""
        return self.inner.burst()

    def burst_executor(self) -> BurstExecutor | None:
        """As the prepared model does."""
        return self.inner.burst_executor()

    def burst_opened(self) -> None:
        """Passed on."""
        self.inner.burst_opened()

    def burst_closed(self) -> None:
        """Passed on."""
        self.inner.burst_closed()

    def memory(self) -> MemoryUse:
        """What the prepared model says."""
        return self.inner.memory()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """As the prepared model does."""
        self.inner.reconfigure(options)

    def trim(self, *, pressed: bool) -> None:
        """As the prepared model does."""
        self.inner.trim(pressed=pressed)

    def save(self, files: CacheContent) -> bool:
        """As the prepared model does."""
        return self.inner.save(files)

    def close(self) -> None:
        """Close the prepared model itself."""
        self.inner.close()


def _unwrapped(prepared: Of) -> Of:
    return prepared.inner if isinstance(prepared, PreparedWrapper) else prepared


class Limited(Wrapper):
    """A device that takes only some of what it could: `takes(model, place)` decides for each operation of a model.

    For experiments with placement: `Limited(litert, lambda model, n: n % 2 == 0, "every other operation is left out")`.
    """

    def __init__(self, inner: Device, takes: Callable[[Model, int], bool], reason: str = "left out on purpose") -> None:
        super().__init__(inner)
        self.takes, self.reason = takes, reason

    def consider(self, model: Model, hints: Hints) -> Considered:
        """What the device itself says, and no for what is left out, and for groups with such operations."""
        said = self.inner.consider(model, hints)
        verdicts = [v if self.takes(model, n) else Verdict(False, self.reason) for n, v in enumerate(said.verdicts)]
        groups = [group for group in said.groups if all(self.takes(model, n) for n in group.operations)]
        return replace(said, verdicts=verdicts, groups=groups)


class WithOptions(Wrapper):
    """A device that is given options of its own at each compilation, beside those that it is given anyway."""

    def __init__(self, inner: Device, options: Mapping[str, Any]) -> None:
        super().__init__(inner)
        self.options = dict(options)
        self.asked_again = inner.asked_again

    def consider(self, model: Model, hints: Hints) -> Considered:
        """With the options."""
        return self.inner.consider(model, self._with(hints))

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """With the options."""
        prepared = self.inner.prepare(model, self._with(hints))
        return PreparedWithOptions(prepared, model, self.options) if prepared.changeable else prepared

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """With the options."""
        prepared = self.inner.prepare_from_cache(outline, self._with(hints))
        return PreparedWithOptions(prepared, outline, self.options) if prepared.changeable else prepared

    def told(self, hints: Hints) -> Hints:
        """With the options."""
        return self.inner.told(self._with(hints))

    def _with(self, hints: Hints) -> Hints:
        return replace(hints, options={**hints.options, **self.options})


class PreparedWithOptions(PreparedWrapper):
    """A prepared model whose device has options of its own beside those that it is given."""

    def __init__(self, inner: Prepared, model: Model, options: Mapping[str, Any]) -> None:
        super().__init__(inner, model)
        self.options = dict(options)

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """With the options."""
        self.inner.reconfigure({**options, **self.options})


# ---------------------------------------------------------------------------------------------------------- at a level


class AtLevel(Wrapper):
    """Any device as one of a lower level: what the level lacks is refused, with the reason, or not passed on."""

    def __init__(self, inner: Device, level: Level) -> None:
        super().__init__(inner)
        self.level = min(level, inner.level)
        self.asked_again = inner.asked_again
        if self.level < V1_2:
            self.extensions = ()

    def capabilities(self) -> Capabilities:
        """The device's own, as far as the level's form holds them."""
        return stated_at(self.inner.capabilities(), self.level)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """The device's own verdicts, and no for what its level lacks. Groups are passed on since 1.3.

        What it worked out is not: it prepares models in another form than that which it considered.
        """
        reasons = refusals(model, self.level)
        if all(reasons):
            return Considered([Verdict(False, reason) for reason in reasons])
        said = self.inner.consider(model, self._told(hints))
        if len(said.verdicts) != len(reasons):
            return said  # for the runtime to refuse
        own = ["" if v.ok else v.reason or "the device says no" for v in said.verdicts]
        everything = with_neighbours(model, [a or b for a, b in zip(reasons, own, strict=True)], self.level)
        verdicts = [Verdict(False, why) if why else v for why, v in zip(everything, said.verdicts, strict=True)]
        if self.level < V1_3:
            return Considered(verdicts)
        groups = [group for group in said.groups if not any(reasons[n] for n in group.operations)]
        return Considered(verdicts, groups)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Prepare the model in the level's form; what the level does not tell a driver keeps its default."""
        model = lowered(model, self.level)
        return PreparedAtLevel(self.inner.prepare(model, self._told(hints)), model, self.name, self.level)

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """As the device does, with what the level tells it. Since 1.2."""
        prepared = self.inner.prepare_from_cache(outline, self._told(hints))
        return PreparedAtLevel(prepared, outline, self.name, self.level)

    def told(self, hints: Hints) -> Hints:
        """What the level tells it."""
        return self.inner.told(self._told(hints))

    def _told(self, hints: Hints) -> Hints:
        """What the driver is told of the hints."""
        if self.level < V1_3:
            hints = replace(hints, priority=Priority.MEDIUM, deadline=None)
        if self.level < V1_1:
            hints = replace(hints, preference=Preference.FAST_SINGLE_ANSWER)
        return hints

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Since 1.3."""
        if self.level < V1_3:
            _refuse("allocate", V1_3, self.name, self.level)
        return super().allocate(desc, roles)


class PreparedAtLevel(PreparedWrapper):
    """A prepared model of a device at a lower level."""

    def __init__(self, inner: Prepared, model: Model, device: str, level: Level) -> None:
        super().__init__(inner, model)
        self._device, self._level = device, level

    def run(self, request: Request, control: Control) -> Timing | None:
        """Run; the driver is told of deadline and loop time-out since 1.3, of measuring since 1.2."""
        if self._level >= V1_3:
            return self.inner.run(request, control)
        measure = control.measure and self._level >= V1_2
        timing = self.inner.run(request, Control(None, LOOP_TIMEOUT_DEFAULT_NS, measure, control.cancelled))
        control.check()
        return timing

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """In the background, by `run`."""
        Prepared.execute(self, request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Since 1.3."""
        if self._level < V1_3:
            _refuse("executeFenced", V1_3, self._device, self._level)
        return self.inner.execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        """Since 1.2."""
        if self._level < V1_2:
            _refuse("configureExecutionBurst", V1_2, self._device, self._level)
        return self.inner.burst()


def _refuse(method: str, needed: Level, device: str, level: Level) -> NoReturn:
    raise OperationFailed(f"{method} needs level {needed}, device {device} is at {level}")


# ------------------------------------------------------------------------------------------------------------- recorded


class Recorded(Wrapper):
    """A device that notes every call of a method, of it and of what it prepares, in `calls`, by name."""

    def __init__(self, inner: Device, calls: list[str]) -> None:
        super().__init__(inner)
        self.calls = calls
        self.asked_again = inner.asked_again

    def capabilities(self) -> Capabilities:
        """Noted, and passed on."""
        self.calls.append("capabilities")
        return super().capabilities()

    def supports(self, model: Model) -> Sequence[Verdict | bool]:
        """Noted, and passed on."""
        self.calls.append("supports")
        return self.inner.supports(model)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Noted, and passed on."""
        self.calls.append("consider")
        return self.inner.consider(model, hints)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Noted, and passed on; what is prepared notes its calls too."""
        self.calls.append("prepare")
        return RecordedPrepared(super().prepare(model, hints), model, self.calls)

    def number_of_cache_files(self) -> CacheFiles:
        """Noted, and passed on."""
        self.calls.append("number_of_cache_files")
        return super().number_of_cache_files()

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """Noted, and passed on; what is prepared notes its calls too."""
        self.calls.append("prepare_from_cache")
        return RecordedPrepared(super().prepare_from_cache(outline, hints), outline, self.calls)

    def status(self) -> DeviceStatus:
        """Noted, and passed on."""
        self.calls.append("status")
        return super().status()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Noted, and passed on."""
        self.calls.append("allocate")
        return super().allocate(desc, roles)

    def close(self) -> None:
        """Noted, and passed on."""
        self.calls.append("close")
        super().close()


class RecordedPrepared(PreparedWrapper):
    """A prepared model that notes every call."""

    def __init__(self, inner: Prepared, model: Model, calls: list[str]) -> None:
        super().__init__(inner, model)
        self.calls = calls

    def run(self, request: Request, control: Control) -> Timing | None:
        """Noted, and passed on."""
        self.calls.append("run")
        return super().run(request, control)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Noted, and passed on."""
        self.calls.append("execute")
        super().execute(request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Noted, and passed on."""
        self.calls.append("execute_fenced")
        return super().execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        """Noted, and passed on."""
        self.calls.append("burst")
        return super().burst()

    def memory(self) -> MemoryUse:
        """Noted, and passed on."""
        self.calls.append("memory")
        return super().memory()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        """Noted, and passed on."""
        self.calls.append("reconfigure")
        super().reconfigure(options)

    def close(self) -> None:
        """Noted, and passed on."""
        self.calls.append("close")
        super().close()

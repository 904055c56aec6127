"""Devices that wrap another device and change its behaviour."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from nnhal.base.codes import LOOP_TIMEOUT_DEFAULT_NS, DeviceStatus, Preference, Priority
from nnhal.base.errors import OperationFailed
from nnhal.base.levels import V1_1, V1_2, V1_3, Level
from nnhal.base.records import replace
from nnhal.hal.background import FencedExecution, Notify
from nnhal.hal.burst import Burst
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.code import CodeIdentity
from nnhal.hal.device import Capabilities, Considered, Device, Hints, Prepared, Verdict, identity_of
from nnhal.hal.fence import Fence
from nnhal.hal.lowering import lowered, performance_at, refusals, with_neighbours
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, MemoryUse
from nnhal.hal.prepared import PreparedWrapper, driver_roles
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model


class Wrapper(Device):
    """A device that delegates to another one; its subclasses change some methods."""

    def __init__(self, inner: Device) -> None:
        self.inner = inner
        own = identity_of(inner)
        self.name, self.version, self.type, self.level, self.extensions = own[:5]
        self.relaxations, self.preferred_layout, self.numerics = own[5:]
        self.one_at_a_time, self.at_once = inner.one_at_a_time, inner.at_once
        answers = type(self).consider, type(self).supports
        self.asked_again = inner.asked_again or answers != (Wrapper.consider, Wrapper.supports)

    def capabilities(self) -> Capabilities:
        return self.inner.capabilities()

    def supports(self, model: Model) -> Sequence[Verdict | bool]:
        """Return the device's verdicts, or those of a subclass that overrides `consider`."""
        if type(self).consider is not Wrapper.consider:
            return self.consider(model, Hints()).verdicts
        return self.inner.supports(model)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Return the device's answer, or the verdicts of a subclass that overrides `supports`."""
        if type(self).supports is not Wrapper.supports:
            return super().consider(model, hints)
        return self.inner.consider(model, hints)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        return self.inner.prepare(model, hints)

    def number_of_cache_files(self) -> CacheFiles:
        return self.inner.number_of_cache_files()

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        return self.inner.prepare_from_cache(outline, hints)

    @property
    def cached_as(self) -> Device:
        """The device's cache owner; this object if an external subclass overrides preparation."""
        kind = type(self)
        own = {each for each in kind.__mro__ if {"prepare", "prepare_from_cache"} & vars(each).keys()}
        return self.inner.cached_as if all(each.__module__.startswith("nnhal.") for each in own) else self

    @property
    def code_identity(self) -> CodeIdentity:
        """The device's code identity; unknown if an external subclass overrides preparation."""
        if self.cached_as is not self:
            return self.cached_as.code_identity
        why = f"wrapper {type(self).__qualname__} prepares otherwise than the device in it, must be a Device to be kept"
        return CodeIdentity.unlike_any(why)

    def effective_hints(self, hints: Hints) -> Hints:
        return self.inner.effective_hints(hints)

    def status(self) -> DeviceStatus:
        return self.inner.status()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Allocate through the device. The buffer's roles may name the wrapped prepared models or the inner ones."""
        buffer = self.inner.allocate(desc, driver_roles(roles))
        buffer.add_roles(roles)
        return buffer

    def close(self) -> None:
        self.inner.close()


class Limited(Wrapper):
    """A device that rejects some operations: `takes(model, place)` decides for each.

    For experiments with placement: `Limited(litert, lambda model, n: n % 2 == 0, "every other operation is left out")`.
    """

    def __init__(self, inner: Device, takes: Callable[[Model, int], bool], reason: str = "left out on purpose") -> None:
        super().__init__(inner)
        self.takes, self.reason = takes, reason

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Return the device's answer, with negative verdicts on rejected operations and without groups that contain them."""
        said = self.inner.consider(model, hints)
        verdicts = [v if self.takes(model, n) else Verdict(False, self.reason) for n, v in enumerate(said.verdicts)]
        groups = [group for group in said.groups if all(self.takes(model, n) for n in group.operations)]
        return replace(said, verdicts=verdicts, groups=groups)


class WithOptions(Wrapper):
    """A device that always receives some options, in addition to the application's."""

    def __init__(self, inner: Device, options: Mapping[str, Any]) -> None:
        super().__init__(inner)
        self.options = dict(options)
        self.asked_again = inner.asked_again

    def consider(self, model: Model, hints: Hints) -> Considered:
        return self.inner.consider(model, self._with(hints))

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        prepared = self.inner.prepare(model, self._with(hints))
        return PreparedWithOptions(prepared, model, self.options) if prepared.changeable else prepared

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        prepared = self.inner.prepare_from_cache(outline, self._with(hints))
        return PreparedWithOptions(prepared, outline, self.options) if prepared.changeable else prepared

    def effective_hints(self, hints: Hints) -> Hints:
        return self.inner.effective_hints(self._with(hints))

    def _with(self, hints: Hints) -> Hints:
        return replace(hints, options={**hints.options, **self.options})


class PreparedWithOptions(PreparedWrapper):
    """A prepared model of a device with additional options."""

    def __init__(self, inner: Prepared, model: Model, options: Mapping[str, Any]) -> None:
        super().__init__(inner, model)
        self.options = dict(options)

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self.inner.reconfigure({**options, **self.options})


# ---------------------------------------------------------------------------------------------------------- at a level


class WithHalLevel(Wrapper):
    """A device at a lower HAL version: it rejects what the level lacks, or does not receive it."""

    def __init__(self, inner: Device, level: Level) -> None:
        super().__init__(inner)
        self.level = min(level, inner.level)
        self.asked_again = inner.asked_again
        if self.level < V1_2:
            self.extensions = ()

    def capabilities(self) -> Capabilities:
        """Return the device's capabilities, as far as the level can express them."""
        return performance_at(self.inner.capabilities(), self.level)

    def consider(self, model: Model, hints: Hints) -> Considered:
        """Return the device's verdicts, negative for what its level lacks. Groups exist since 1.3.

        Reusable work is dropped: the device prepares other models than it considered.
        """
        reasons = refusals(model, self.level)
        if all(reasons):
            return Considered([Verdict(False, reason) for reason in reasons])
        said = self.inner.consider(model, self._told(hints))
        if len(said.verdicts) != len(reasons):
            return said  # for the runtime to refuse
        own = ["" if v.ok else v.reason or "the device rejects it" for v in said.verdicts]
        everything = with_neighbours(model, [a or b for a, b in zip(reasons, own, strict=True)], self.level)
        verdicts = [Verdict(False, why) if why else v for why, v in zip(everything, said.verdicts, strict=True)]
        if self.level < V1_3:
            return Considered(verdicts)
        groups = [group for group in said.groups if not any(reasons[n] for n in group.operations)]
        return Considered(verdicts, groups)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        """Prepare the model at this level. Hints that the level lacks have their defaults."""
        model = lowered(model, self.level)
        return PreparedWithHalLevel(self.inner.prepare(model, self._told(hints)), model, self.name, self.level)

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        """Prepare from the cache, with the hints of this level. Since 1.2."""
        prepared = self.inner.prepare_from_cache(outline, self._told(hints))
        return PreparedWithHalLevel(prepared, outline, self.name, self.level)

    def effective_hints(self, hints: Hints) -> Hints:
        return self.inner.effective_hints(self._told(hints))

    def _told(self, hints: Hints) -> Hints:
        """Return the hints that the level has."""
        if self.level < V1_3:
            hints = replace(hints, priority=Priority.MEDIUM, deadline=None)
        if self.level < V1_1:
            hints = replace(hints, preference=Preference.FAST_SINGLE_ANSWER)
        return hints

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        """Allocate a buffer. Since 1.3."""
        if self.level < V1_3:
            _refuse("allocate", V1_3, self.name, self.level)
        return super().allocate(desc, roles)


class PreparedWithHalLevel(PreparedWrapper):
    """A prepared model of a device at a lower HAL version."""

    def __init__(self, inner: Prepared, model: Model, device: str, level: Level) -> None:
        super().__init__(inner, model)
        self._device, self._level = device, level

    def run(self, request: Request, control: Control) -> Timing | None:
        """Execute. The driver receives deadline and loop time-out since 1.3, and measures since 1.2."""
        if self._level >= V1_3:
            return self.inner.run(request, control)
        measure = control.measure and self._level >= V1_2
        timing = self.inner.run(request, Control(None, LOOP_TIMEOUT_DEFAULT_NS, measure, control.cancelled))
        control.check()
        return timing

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        Prepared.execute(self, request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Execute behind fences. Since 1.3."""
        if self._level < V1_3:
            _refuse("executeFenced", V1_3, self._device, self._level)
        return self.inner.execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        """Open a burst. Since 1.2."""
        if self._level < V1_2:
            _refuse("configureExecutionBurst", V1_2, self._device, self._level)
        return self.inner.burst()


def _refuse(method: str, needed: Level, device: str, level: Level) -> NoReturn:
    raise OperationFailed(f"{method} needs level {needed}, device {device} is at {level}")


# ------------------------------------------------------------------------------------------------------------- recorded


class Recorded(Wrapper):
    """A device that records every method call, also of its prepared models, in `calls`, by name."""

    def __init__(self, inner: Device, calls: list[str]) -> None:
        super().__init__(inner)
        self.calls = calls
        self.asked_again = inner.asked_again

    def capabilities(self) -> Capabilities:
        self.calls.append("capabilities")
        return super().capabilities()

    def supports(self, model: Model) -> Sequence[Verdict | bool]:
        self.calls.append("supports")
        return self.inner.supports(model)

    def consider(self, model: Model, hints: Hints) -> Considered:
        self.calls.append("consider")
        return self.inner.consider(model, hints)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        self.calls.append("prepare")
        return RecordedPrepared(super().prepare(model, hints), model, self.calls)

    def number_of_cache_files(self) -> CacheFiles:
        self.calls.append("number_of_cache_files")
        return super().number_of_cache_files()

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        self.calls.append("prepare_from_cache")
        return RecordedPrepared(super().prepare_from_cache(outline, hints), outline, self.calls)

    def status(self) -> DeviceStatus:
        self.calls.append("status")
        return super().status()

    def allocate(self, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
        self.calls.append("allocate")
        return super().allocate(desc, roles)

    def close(self) -> None:
        self.calls.append("close")
        super().close()


class RecordedPrepared(PreparedWrapper):
    """A prepared model that records every call."""

    def __init__(self, inner: Prepared, model: Model, calls: list[str]) -> None:
        super().__init__(inner, model)
        self.calls = calls

    def run(self, request: Request, control: Control) -> Timing | None:
        self.calls.append("run")
        return super().run(request, control)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        self.calls.append("execute")
        super().execute(request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        self.calls.append("execute_fenced")
        return super().execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        self.calls.append("burst")
        return super().burst()

    def memory(self) -> MemoryUse:
        self.calls.append("memory")
        return super().memory()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self.calls.append("reconfigure")
        super().reconfigure(options)

    def close(self) -> None:
        self.calls.append("close")
        super().close()

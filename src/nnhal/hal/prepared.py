"""Prepared models that wrap another one."""

from collections.abc import Mapping, Sequence
from typing import Any

from nnhal.base.records import replace
from nnhal.hal.background import FencedExecution, Notify
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import CacheContent
from nnhal.hal.device import Prepared
from nnhal.hal.fence import Fence
from nnhal.hal.memory import BufferRole, MemoryUse
from nnhal.hal.request import BelongsToModel, Control, Request, Timing
from nnhal.model.graph import Model


class PreparedWrapper(Prepared):
    """A prepared model that delegates to another one."""

    def __init__(self, inner: Prepared, model: Model) -> None:
        self.inner, self.model, self.timely = inner, model, inner.timely
        self.one_at_a_time, self.profiles = inner.one_at_a_time, inner.profiles
        self.weights_consumed, self.changeable = inner.weights_consumed, inner.changeable
        self.writes_later = inner.writes_later
        self.trimmable = inner.trimmable
        inner.model = model

    def run(self, request: Request, control: Control) -> Timing | None:
        return self.inner.run(request, control)

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        self.inner.execute(request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        return self.inner.execute_fenced(request, control, wait_for, after)

    def burst(self) -> Burst:
        return self.inner.burst()

    def burst_executor(self) -> BurstExecutor | None:
        return self.inner.burst_executor()

    def burst_opened(self) -> None:
        self.inner.burst_opened()

    def burst_closed(self) -> None:
        self.inner.burst_closed()

    def memory(self) -> MemoryUse:
        return self.inner.memory()

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self.inner.reconfigure(options)

    def trim(self, *, pressed: bool) -> None:
        self.inner.trim(pressed=pressed)

    def save(self, files: CacheContent) -> bool:
        return self.inner.save(files)

    def close(self) -> None:
        self.inner.close()


def unwrapped(prepared: BelongsToModel) -> BelongsToModel:
    """Return the prepared model in a wrapper; any other one as it is."""
    return prepared.inner if isinstance(prepared, PreparedWrapper) else prepared


def driver_roles(roles: Sequence[BufferRole]) -> list[BufferRole]:
    """Return the roles of a buffer with the prepared models in their wrappers."""
    return [replace(role, prepared=unwrapped(role.prepared)) for role in roles]

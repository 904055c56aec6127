"""Prepares and restores models on devices, and wraps what the drivers return.

An execution passes the guard against trims, the lock of the options, and the queues of its device.
"""

import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from nnhal.base import trace
from nnhal.base.answers import close_quietly, driver_call, raise_application_error, safe_repr
from nnhal.base.codes import Preference
from nnhal.base.cores import usable_cores
from nnhal.base.errors import ContractBroken, InvalidArgument, NnhalError
from nnhal.base.lazy import cached_property
from nnhal.base.log import logger
from nnhal.base.memory import Memory
from nnhal.base.operands import fixed
from nnhal.base.records import replace
from nnhal.hal.answers import require_new
from nnhal.hal.background import FencedExecution, Notify
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles, write_refusal
from nnhal.hal.device import (
    Device,
    Hints,
    Prepared,
    T,
    cache_record_identity,
    code_by,
    layer_of,
    layout_of,
    require_kind,
    require_texts,
    where_of,
)
from nnhal.hal.fence import Fence
from nnhal.hal.host import LocalBurst
from nnhal.hal.options_lock import OptionsLock
from nnhal.hal.prepared import PreparedWrapper
from nnhal.hal.queue import RunQueue, places, sustained, units_of
from nnhal.hal.request import UNLIMITED, Act, Control, Request, Run, Signature, Timing
from nnhal.hal.waiting import OWN, LatencyByShape, LatencyEstimator, QueueClient
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.model.validate import release_constants, shape_of

if TYPE_CHECKING:
    from nnhal.hal.idle import TrimGuard


_log = logger("compilation")
MOST_AT_ONCE = 4096  # executions


def checked_prepared(
    device: Device, model: Model, hints: Hints, *, as_is: bool = False, restore: bool = False, client: QueueClient = OWN
) -> "PreparedChain":
    """Prepare a model on a device, or restore it, and verify the answer.

    The device receives the model in its preferred layout; inputs and outputs keep theirs. nnhal writes the driver's
    cache sections to the hints' cache files. If that fails, the files stay empty. The driver is called in the device's
    queue; for an isolated driver, its own process queues the call.

    Args:
        device: The device.
        model: The model.
        hints: The hints.
        as_is: Whether the model has the preferred layout already.
        restore: Whether to restore it from `hints.cache`. `model` is then its outline, in the preferred layout. Any
            NnhalError is a cache miss.
        client: The client in whose name the model is prepared and executed.

    Returns:
        A wrapper of the driver's object. The object itself is `inner`.

    Raises:
        ContractBroken: The answer is not a new `Prepared`.
    """
    try:
        where, query = where_of(device), "prepare_from_cache()" if restore else "prepare()"
        model = with_layout(model, None if as_is or restore else layout_of(device)).model
        span = trace.span(layer_of(device), "compilation", "restore" if restore else "prepare", where)
        with span, driver_call(where, query):
            pinned = pin_threads(hints)

            def prepare(_: object, __: Control) -> Any:
                return device.prepare_from_cache(model, pinned) if restore else device.prepare(model, pinned)

            if device.timely:
                made = prepare(None, UNLIMITED)
            else:
                queue = _queue_of(device, "prepare", f"{where}: prepare", places(0), strict=False)
                made = queue.queued(prepare, client, hints.priority)(None, Control(deadline=hints.deadline))
            prepared = _wrapped(device, made, model, pinned, client, query)
        if hints.cache is not None and not restore:
            try:
                _save(device, prepared, hints.cache, model)
            except BaseException:  # interrupted
                hints.cache.settled.set()  # its end may be waiting for this event
                prepared.close()
                raise
        prepared.watch()  # after `save`, which counts as no execution
        return prepared
    finally:
        if hints.cache is not None:
            hints.cache.settled.set()


def _wrapped(device: Device, made: Any, model: Model, hints: Hints, client: QueueClient, query: str) -> "PreparedChain":
    """Wrap what a driver prepared; close it if it breaks its contract."""
    if not isinstance(made, Prepared):
        raise ContractBroken(f"{query} gave {safe_repr(made)}, must give a Prepared")
    require_new(made, f"{query} gave a Prepared")
    try:
        return PreparedChain(device, made, model, hints, client)
    except BaseException as error:
        close_quietly(where_of(device), "close() of a prepared model", made.close)
        if isinstance(error, InvalidArgument):  # it is not the application's fault
            raise ContractBroken(str(error)) from None
        raise


def _save(device: Device, prepared: "PreparedChain", cache: Cache, model: Model) -> None:
    from nnhal.hal.cache.keeper import store_content

    where = prepared.where
    if unknown := code_by(device).unknown:
        _log.warning("%s: its compilation is not kept: %s", where, unknown)
        return
    content = CacheContent.empty(CacheFiles(len(cache.model_files), len(cache.data_files)), model.pools)
    try:
        with driver_call(where, "save()"):
            if require_kind(bool, prepared.save(content), "the result of save()"):
                store_content(content, cache, *cache_record_identity(device))
    except (NnhalError, OSError) as error:
        raise_application_error(error)
        _log.warning("%s: its compilation is not kept: %s", where, error)
        write_refusal(cache, str(error).removeprefix(f"{where}: "))


def _queue_of(device: Device, use: str, where: str, width: int, *, strict: bool) -> RunQueue:
    """Return the queue of a device for one use; it lives as long as the device."""
    queues = device._device_state.queues
    return queues.get(use) or queues.setdefault(use, RunQueue(where, width, strict=strict))


class QueueLink(NamedTuple):
    """A queue that the executions of a model pass, the places that one takes, and their predicted time."""

    queue: RunQueue
    units: int
    pace: LatencyEstimator | LatencyByShape


class PreparedChain(PreparedWrapper):
    """A driver's prepared model, whose executions wait for their turn and never overlap a trim.

    Its attributes are those of the driver's object, verified and read once.

    Attributes:
        inner: The driver's object.
        where: The device, for messages.
        queues: The queues that an execution passes, the innermost first.
        lock: Serialises executions and changes of options; None if nothing changes, or if another process does so.
        guard: Keeps executions and trims apart; None if there is nothing to trim in this process.
    """

    changeable: tuple[str, ...]
    guard: "TrimGuard | None" = None

    def __init__(self, device: Device, inner: Prepared, model: Model, hints: Hints, client: QueueClient) -> None:
        super().__init__(inner, model)
        self.where, self._client, self._priority = where_of(device), client, hints.priority
        self.one_at_a_time = require_kind(bool, inner.one_at_a_time, "one_at_a_time of a Prepared")
        self.weights_consumed = require_kind(bool, inner.weights_consumed, "weights_consumed of a Prepared")
        self.changeable = require_texts(inner.changeable, "changeable of a Prepared")
        self.writes_later = require_kind(bool, inner.writes_later, "writes_later of a Prepared")
        if hints.cache is not None and not self.writes_later:
            own = device.cached_as  # a device that overrides it may have duplicated the files
            reads = not own.timely and type(own).prepare_from_cache is not Device.prepare_from_cache
            self.writes_later = reads or hints.cache.later.is_set()
        self.trimmable = require_kind(bool, inner.trimmable, "trimmable of a Prepared")
        self.queues = self._queues_on(device, hints)
        self.lock = OptionsLock() if self.changeable and not inner.timely else None
        if self.trimmable:
            from nnhal.hal.idle import TrimGuard

            self.guard = TrimGuard(inner, self.where)
        self._run = self.around(inner.run)
        inner._wrapper = weakref.ref(self)

    def _queues_on(self, device: Device, hints: Hints) -> list[QueueLink]:
        main = self.model.main
        closed = all(fixed(shape_of(main.operands[i])) is not None for i in main.inputs)
        kind = LatencyEstimator if closed else LatencyByShape
        pace: LatencyEstimator | LatencyByShape = kind(by_values=bool(self.model.referenced))  # of an IF or WHILE
        found: list[QueueLink] = []

        def enter(queue: RunQueue, units: int = 1) -> None:
            found.append(QueueLink(queue, units, found[-1].pace.around() if found else pace))

        here = not self.timely  # an isolated engine's own process does it
        if here and hints.preference == Preference.SUSTAINED_SPEED:
            cores = usable_cores()
            enter(sustained(), hints.threads or cores)
        if require_kind(bool, device.one_at_a_time, "one_at_a_time"):
            enter(_queue_of(device, "run", self.where, 1, strict=True))
        else:
            if here:
                width = places(_number(device.at_once, "at_once"))
                enter(_queue_of(device, "run", self.where, width, strict=False), units_of(hints.threads, width))
            if self.one_at_a_time:
                enter(RunQueue(self.where, 1, strict=True))
        return found

    def around(self, call: Act[T]) -> Act[T]:
        """Wrap a function that executes the model, as `run` is wrapped."""
        for queue, units, pace in self.queues:
            call = queue.queued(call, self._client, self._priority, units, pace)
        if self.lock is not None:
            call = self.lock.side_by_side(call)
        return call if self.guard is None else self.guard.through(call)

    @property
    def model(self) -> Model:
        """As in `Prepared`."""
        return self.inner.model

    @model.setter
    def model(self, model: Model) -> None:
        self.inner.model = model

    @cached_property
    def signature(self) -> Signature:
        """As in `Prepared`, with the device's name."""
        return Signature.of(self.model, self.where, self)

    @property
    def run(self) -> Run:
        """As `Prepared.run`; a function, because each frame of an execution counts."""
        return self._run

    def execute(self, request: Request, control: Control, notify: Notify) -> None:
        """Call the driver's method, or the default, which calls `run`."""
        (Prepared.execute if self._has_default("execute") else PreparedWrapper.execute)(self, request, control, notify)

    def execute_fenced(
        self, request: Request, control: Control, wait_for: Sequence[Fence] = (), after: int | None = None
    ) -> FencedExecution:
        """Call the driver's method, or the default, which calls `run`."""
        execute = PreparedWrapper.execute_fenced if self.fenced_by_driver else Prepared.execute_fenced
        return execute(self, request, control, wait_for, after)

    @property
    def fenced_by_driver(self) -> bool:
        """Whether the driver itself executes behind fences."""
        return not self._has_default("execute_fenced")

    def _has_default(self, method: str) -> bool:
        return getattr(getattr(self.inner, method), "__func__", None) is getattr(Prepared, method)

    def burst(self) -> Burst:
        """Open the driver's burst. Its executions wait as those of `run` do."""
        burst = self.inner.burst()
        if isinstance(burst, LocalBurst):
            burst.run_within(self, self.around)
        elif isinstance(burst, Burst) and (self.queues or self.lock or self.guard):
            require_new(burst, "burst() gave a Burst")
            return QueuedBurst(burst, self)
        return burst

    def change_options(self, options: Mapping[str, Any], control: Control) -> None:
        """Call the driver's `reconfigure` while no execution runs, and forget the predicted times.

        Args:
            options: As in `reconfigure`.
            control: Limits the wait for executions.
        """

        def change(options: Mapping[str, Any], _: Control) -> None:
            self.inner.reconfigure(options)

        def forget(options: Mapping[str, Any], control: Control) -> None:
            try:
                guarded(options, control)
            finally:
                for link in self.queues:
                    link.pace.forget()

        guarded = change if self.guard is None else self.guard.through(change)
        act: Act[None] = forget
        for queue, _, _ in self.queues:
            if queue.strict:
                act = queue.queued(act, self._client, self._priority)
        (act if self.lock is None else self.lock.alone(act))(options, control)

    def trim_now(self, *, pressed: bool) -> bool:
        """Trim the model, unless an execution runs; return whether it was trimmed.

        Raises the driver's error with its name. InvalidArgument if the model is not trimmable, or is in another process.
        """
        if self.guard is None:
            raise InvalidArgument("trim: the prepared model is not trimmable here, must be")
        return self.guard.trim(pressed=pressed)

    def watch(self) -> None:
        """Trim the model from now on when it is idle, if it can be trimmed."""
        if self.guard is not None:
            self.guard.watch()

    def close(self) -> None:
        """As `Prepared.close`, after a trim."""
        if self.guard is None:
            self.inner.close()
        else:
            self.guard.close(self.inner.close)


def _number(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_AT_ONCE:
        raise InvalidArgument(f"{what} is {safe_repr(value)}, must be an int of 0 to {MOST_AT_ONCE}")
    return value


def release_weights(prepared: PreparedChain, model: Model, where: str) -> bool:
    """Release the caller's copy of the constants, if the driver `where` no longer needs them."""
    if not prepared.weights_consumed:
        return False
    why = f"{where}: read constants after prepare(), must not: it declares weights_consumed"
    release_constants(model, why)
    return True


def checked_reconfigure(
    prepared: PreparedChain, where: str, options: Mapping[str, Any], control: Control = UNLIMITED
) -> None:
    """Change the options of a prepared model while none of its executions runs.

    options: all options from now on. control: limits the wait for executions.
    """
    with driver_call(where, "reconfigure()"):
        if not prepared.changeable:
            raise InvalidArgument("no option of it may change between executions")
        prepared.change_options(dict(options), control)


def pin_threads(hints: Hints) -> Hints:
    """Limit the threads to those that can run at once: more would only use memory."""
    most = usable_cores()
    return hints if hints.threads <= most else replace(hints, threads=most)


def checked_burst(prepared: Prepared, where: str) -> Burst:
    """Open a burst of a prepared model; ContractBroken if the answer is not a new Burst."""
    with driver_call(where, "burst()"):
        burst = prepared.burst()
        if not isinstance(burst, Burst):
            raise ContractBroken(f"burst() gave {safe_repr(burst)}, must give a Burst")
        require_new(burst, "burst() gave a Burst")
        return burst


def checked_executor(prepared: PreparedChain, where: str) -> "QueuedExecutor | None":
    """Return the executor for a burst from another process, or None for plain runs.

    Raises ContractBroken if the answer is neither, or an executor that was returned before.
    """
    with driver_call(where, "burst_executor()"):
        executor = prepared.burst_executor()
        if not isinstance(executor, BurstExecutor | None):
            raise ContractBroken(f"burst_executor() gave {safe_repr(executor)}, must give a BurstExecutor or None")
        if executor is None:
            return None
        require_new(executor, "burst_executor() gave a BurstExecutor")
        return QueuedExecutor(executor, prepared)


class QueuedBurst(Burst):
    """A driver's own burst, whose executions wait as those of `Prepared.run` do.

    The driver may change the attributes of its burst at any time, so they are properties here.
    """

    def __init__(self, inner: Burst, prepared: PreparedChain) -> None:
        self.inner, self._act = inner, prepared.around(inner.run)

    @property
    def ended(self) -> bool:  # type: ignore[override]
        """As in `Burst`."""
        return self.inner.ended

    @property
    def plain(self) -> Mapping[str, int]:  # type: ignore[override]
        """As in `Burst`."""
        return self.inner.plain

    @property
    def way(self) -> str:  # type: ignore[override]
        """As in `Burst`."""
        return self.inner.way

    def run(self, request: Request, control: Control) -> Timing | None:
        return self._act(request, control)

    def free_memory(self, memory: Memory) -> None:
        self.inner.free_memory(memory)

    def close(self) -> None:
        self.inner.close()


class QueuedExecutor(BurstExecutor):
    """A driver's burst executor, whose executions wait as those of `Prepared.run` do."""

    def __init__(self, inner: BurstExecutor, prepared: PreparedChain) -> None:
        self.inner = inner

        def execute(given: tuple[Request, Sequence[int]], control: Control) -> Timing | None:
            return inner.execute(*given, control)

        self._act = prepared.around(execute)

    def add(self, slot: int, memory: Memory) -> None:
        self.inner.add(slot, memory)

    def remove(self, slot: int) -> None:
        self.inner.remove(slot)

    def execute(self, request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        return self._act((request, slots), control)

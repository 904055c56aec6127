"""Prepares and restores models on devices, and wraps their executions.

An execution passes the lock of the options, the queues of its device, and the guard against trims.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from inspect import ismethod
from typing import TYPE_CHECKING, Any, NamedTuple

from nnhal.base import trace
from nnhal.base.answers import close_quietly, driver_call, raise_application_error, safe_repr
from nnhal.base.codes import Preference
from nnhal.base.cores import usable_cores
from nnhal.base.errors import ContractBroken, InvalidArgument, NnhalError
from nnhal.base.log import logger
from nnhal.base.operands import fixed
from nnhal.base.records import replace
from nnhal.hal.answers import require_new
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
from nnhal.hal.options_lock import OptionsLock
from nnhal.hal.queue import RunQueue, places, sustained, units_of
from nnhal.hal.request import UNLIMITED, Act, Control, Request, Timing, with_check_before
from nnhal.hal.waiting import OWN, LatencyByShape, LatencyEstimator, QueueClient
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.model.validate import release_constants, shape_of

if TYPE_CHECKING:
    from nnhal.hal.idle import TrimGuard


_log = logger("compilation")
MOST_AT_ONCE = 4096  # executions


def checked_prepared(
    device: Device, model: Model, hints: Hints, *, as_is: bool = False, client: QueueClient = OWN
) -> Prepared:
    """Prepare a model on a device, and verify the answer.

    The device receives the model in its preferred layout; inputs and outputs keep theirs. nnhal writes the driver's
    cache sections to the hints' cache files. If that fails, the files stay empty.

    Args:
        device: The device.
        model: The model.
        hints: The hints.
        as_is: Whether the model has the preferred layout already.
        client: The client in whose name the model is prepared and executed.

    Raises:
        ContractBroken: The answer is not a new `Prepared`.
    """
    try:
        return _prepared_by(device, with_layout(model, None if as_is else layout_of(device)).model, hints, client)
    finally:
        if hints.cache is not None:
            hints.cache.settled.set()


def _prepared_by(device: Device, model: Model, hints: Hints, client: QueueClient) -> Prepared:
    where = where_of(device)
    with trace.span(layer_of(device), "compilation", "prepare", where), driver_call(where, "prepare()"):
        hints = pin_threads(hints)
        prepared = _in_its_turn(device, where, hints, client, lambda: device.prepare(model, hints))
        _taken(device, prepared, "prepare()", model, where, hints, client)
    if hints.cache is not None:
        try:
            _save(device, prepared, hints.cache, model, where)
        except BaseException:  # interrupted
            hints.cache.settled.set()  # its end may be waiting for this event
            prepared.close()
            raise
    return _watched(prepared, where)  # after `save`, which counts as no execution


def checked_restored(device: Device, outline: Model, hints: Hints, *, client: QueueClient = OWN) -> Prepared:
    """Restore a model from `hints.cache`, as `checked_prepared` prepares one. Any NnhalError is a cache miss."""
    assert hints.cache is not None
    try:
        return _restored_by(device, outline, hints, client)
    finally:
        hints.cache.settled.set()


def _restored_by(device: Device, outline: Model, hints: Hints, client: QueueClient) -> Prepared:
    where = where_of(device)
    with trace.span(layer_of(device), "compilation", "restore", where), driver_call(where, "prepare_from_cache()"):
        hints = pin_threads(hints)
        prepared = _in_its_turn(device, where, hints, client, lambda: device.prepare_from_cache(outline, hints))
        return _watched(_taken(device, prepared, "prepare_from_cache()", outline, where, hints, client), where)


def _in_its_turn(device: Device, where: str, hints: Hints, client: QueueClient, prepare: Callable[[], T]) -> T:
    """Call `prepare` in the device's queue. For an isolated driver, its own process queues the call."""
    if device.timely:
        return prepare()
    queue: RunQueue = vars(device).setdefault("_prepare_queue", RunQueue(f"{where}: prepare", places(0), strict=False))
    return queue.run(prepare, client, hints.priority, Control(deadline=hints.deadline))


def _save(device: Device, prepared: Prepared, cache: Cache, model: Model, where: str) -> None:
    from nnhal.hal.cache.keeper import store_content

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


def _taken(
    device: Device, prepared: Any, query: str, model: Model, where: str, hints: Hints, client: QueueClient
) -> Prepared:
    """Verify a prepared model, and queue its executions."""
    if not isinstance(prepared, Prepared):
        raise ContractBroken(f"{query} gave {safe_repr(prepared)}, must give a Prepared")
    require_new(prepared, f"{query} gave a Prepared")
    prepared.model = model
    vars(prepared)["_where"] = where
    try:
        vars(prepared)["_traits"] = _traits(device, prepared, hints)
        way = _Way(device, prepared, where, hints, client)
    except InvalidArgument as error:
        raise _unfit(prepared, where, error) from None
    if way.queues or way.turns is not None:
        vars(prepared).update(_way=way, run=way.of(prepared.run))
    return prepared


def _watched(prepared: Prepared, where: str) -> Prepared:
    """Trim the model from now on, if it can be trimmed."""
    try:
        trimmable = require_kind(bool, prepared.trimmable, "trimmable of a Prepared")
    except InvalidArgument as error:
        raise _unfit(prepared, where, f"{where}: {error}") from None
    if trimmable:
        from nnhal.hal import idle

        idle.watch(prepared, where)
    return prepared


def _unfit(prepared: Prepared, where: str, why: object) -> ContractBroken:
    """Return the error for an invalid attribute of a prepared model. It is not the application's fault."""
    close_quietly(where, "close() of a prepared model", prepared.close)
    return ContractBroken(str(why))


class _Way:
    """The queues and locks that a prepared model's executions pass before they run.

    turns: serialises them with changes of options; None if nothing changes, or if another process does so. queues: with
    the places that an execution takes and the model's predicted time, the innermost first.
    """

    def __init__(self, device: Device, prepared: Prepared, where: str, hints: Hints, client: QueueClient) -> None:
        self._client, self._priority = client, hints.priority
        self.queues: list[tuple[RunQueue, int, LatencyEstimator | LatencyByShape]] = []
        main = prepared.model.main
        closed = all(fixed(shape_of(main.operands[i])) is not None for i in main.inputs)
        self._pace: LatencyEstimator | LatencyByShape = LatencyEstimator() if closed else LatencyByShape()
        here = not prepared.timely  # an isolated engine's own process does it
        if here and hints.preference == Preference.SUSTAINED_SPEED:
            cores = usable_cores()
            self._pass(sustained(), hints.threads or cores)
        if require_kind(bool, device.one_at_a_time, "one_at_a_time"):
            self._pass(_queue_of(device, where, 1))
        elif here:
            width = places(_number(device.at_once, "at_once"))
            self._pass(_queue_of(device, where, width, strict=False), units_of(hints.threads, width))
        if require_kind(bool, prepared.one_at_a_time, "one_at_a_time of a Prepared") and not device.one_at_a_time:
            self._pass(_queue_of(prepared, where, 1))
        self.turns = OptionsLock() if traits_of(prepared).changeable and here else None

    def _pass(self, queue: RunQueue, units: int = 1) -> None:
        inner = self.queues[-1][2] if self.queues else None
        self.queues.append((queue, units, inner.around() if inner is not None else self._pace))

    def of(self, run: Act[T]) -> Act[T]:
        """Wrap a function that executes, so that it waits in the queues."""
        for queue, units, pace in self.queues:
            run = queue.queued(run, self._client, self._priority, units, pace)
        return run if self.turns is None else self.turns.side_by_side(run)

    def change(self, change: Act[T]) -> Act[T]:
        """Wrap a function that changes options: it runs alone, and resets the predicted time."""

        def forgetting(options: Any, control: Control) -> T:
            try:
                return change(options, control)
            finally:
                for _, _, pace in self.queues:
                    pace.forget()

        act: Act[T] = forgetting
        for queue, _, _ in self.queues:
            if queue.strict:
                act = queue.queued(act, self._client, self._priority)
        return act if self.turns is None else self.turns.alone(act)


def _queue_of(owner: Device | Prepared, where: str, width: int, *, strict: bool = True) -> RunQueue:
    queue: RunQueue = vars(owner).setdefault("_run_queue", RunQueue(where, width, strict=strict))
    return queue


def _number(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_AT_ONCE:
        raise InvalidArgument(f"{what} is {safe_repr(value)}, must be an int of 0 to {MOST_AT_ONCE}")
    return value


class Traits(NamedTuple):
    """The attributes of a prepared model, read once. As in `Prepared`."""

    weights_consumed: bool
    changeable: tuple[str, ...]
    writes_later: bool = False


def _traits(device: Device, prepared: Prepared, hints: Hints) -> Traits:
    consumed = require_kind(bool, prepared.weights_consumed, "weights_consumed of a Prepared")
    later = require_kind(bool, prepared.writes_later, "writes_later of a Prepared")
    if hints.cache is not None and not later:
        own = device.cached_as  # a device that overrides it may have duplicated the files
        reads = not own.timely and type(own).prepare_from_cache is not Device.prepare_from_cache
        later = reads or hints.cache.later.is_set()
    return Traits(consumed, require_texts(prepared.changeable, "changeable of a Prepared"), later)


def traits_of(prepared: Prepared) -> Traits:
    """Return the attributes that a model from `checked_prepared` had then."""
    traits: Traits = vars(prepared)["_traits"]
    return traits


def queue_like_run(prepared: Prepared, run: Act[T]) -> Act[T]:
    """Queue another function that executes a model from `checked_prepared`, as its `run` is queued."""
    way: _Way | None = vars(prepared).get("_way")
    return run if way is None else way.of(run)


def queues_of(prepared: Prepared) -> list[RunQueue]:
    """Return the queues of a prepared model's executions."""
    way: _Way | None = vars(prepared).get("_way")
    return [] if way is None else [queue for queue, _, _ in way.queues]


def trim_guard(prepared: Prepared) -> "TrimGuard | None":
    """Return what keeps executions and trims apart; None if there is nothing to trim in this process."""
    guard: TrimGuard | None = vars(prepared).get("_guard")
    return guard


def release_weights(prepared: Prepared, model: Model, where: str) -> bool:
    """Release the caller's copy of the constants, if the driver `where` no longer needs them."""
    if not traits_of(prepared).weights_consumed:
        return False
    why = f"{where}: read constants after prepare(), must not: it declares weights_consumed"
    release_constants(model, why)
    return True


def checked_reconfigure(
    prepared: Prepared, where: str, options: Mapping[str, Any], control: Control = UNLIMITED
) -> None:
    """Change the options of a prepared model while none of its executions runs.

    options: all options from now on. control: limits the wait for executions.
    """

    def reconfigure(options: Mapping[str, Any], _: Control) -> None:
        prepared.reconfigure(options)

    with driver_call(where, "reconfigure()"):
        if not traits_of(prepared).changeable:
            raise InvalidArgument("no option of it may change between executions")
        way: _Way | None = vars(prepared).get("_way")
        guard = trim_guard(prepared)
        change = reconfigure if guard is None else guard.through(reconfigure)
        (change if way is None else way.change(change))(dict(options), control)


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


def checked_executor(prepared: Prepared, where: str) -> BurstExecutor | None:
    """Return the executor for a burst from another process, or None for plain runs.

    Raises ContractBroken if the answer is neither, or an executor that was returned before.
    """
    with driver_call(where, "burst_executor()"):
        executor = prepared.burst_executor()
        if not isinstance(executor, BurstExecutor | None):
            raise ContractBroken(f"burst_executor() gave {safe_repr(executor)}, must give a BurstExecutor or None")
        if executor is not None:
            require_new(executor, "burst_executor() gave a BurstExecutor")
            vars(executor)["execute"] = _executing(prepared, executor)
        return executor


def _executing(prepared: Prepared, executor: BurstExecutor) -> Callable[..., Timing | None]:
    """Wrap the executor's `execute`, so that it waits in the queues and never overlaps a trim."""
    own = executor.execute
    held: Callable[[], Callable[..., Timing | None] | None] = weakref.WeakMethod(own) if ismethod(own) else lambda: own

    def execute(given: tuple[Request, Sequence[int]], control: Control) -> Timing | None:
        call = held()
        assert call is not None  # its owner is alive: it is called through it
        return call(*given, control)

    act, guard = queue_like_run(prepared, with_check_before(own, execute)), trim_guard(prepared)
    act = act if guard is None else guard.through(act)

    def in_its_turn(request: Request, slots: Sequence[int], control: Control) -> Timing | None:
        return act((request, slots), control)

    return with_check_before(own, in_its_turn)

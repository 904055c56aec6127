"""Considers models for a client, and prepares them in the background, also from cache files."""

import os
import time
import weakref
from collections.abc import Callable, Sequence
from itertools import pairwise

from nnhal.base.codes import Preference, Priority
from nnhal.base.errors import Cancelled, InvalidArgument, ResourceExhausted
from nnhal.base.records import replace
from nnhal.hal.answers import checked_memory_use
from nnhal.hal.cache.files import Cache
from nnhal.hal.chain import (
    PreparedChain,
    checked_prepared,
    checked_reconfigure,
    release_weights,
)
from nnhal.hal.claims import consider_support
from nnhal.hal.device import MOST_THREADS, Device, Hints, where_of
from nnhal.hal.request import Control
from nnhal.hal.waiting import client_of
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import claims_to_wire, error_to_wire, model_from_wire, options_from_wire
from nnhal.ipc.service.binding import DONE, Answer
from nnhal.ipc.service.exports import ClientFiles, ConsideredModel, Export, Exports
from nnhal.ipc.service.metrics import OK, outcome_of
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import DECODED
from nnhal.ipc.service.scope import Client
from nnhal.ipc.transport.channel import Descriptors
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part
from nnhal.model.validate import validate, validate_outline

_OfModel = wire.PrepareModel | wire.PrepareModelFromCache | wire.Consider


class CompilationCalls:
    """The considered and prepared models of one client. A model counts against its quota until it is closed."""

    def __init__(self, device: Device, client: Client, exports: Exports, pools: ServicePools) -> None:
        self._device, self._where = device, where_of(device)
        self._client, self._share, self._tally = client, client.share, client.tally
        self._process = client_of(client.share.pid)
        self._exports, self._pools = exports, pools

    def _model(self, call: _OfModel, fds: Descriptors, size: int) -> tuple[Model, int]:
        """Return the model of a call with `size` bytes, and its memory for the quota."""
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds, written=False, kept=True))
        return model, len(model.values) + DECODED * (size - len(model.values))

    def consider(self, call: wire.Consider, fds: Descriptors, size: int) -> Answer:
        model, memory = self._model(call, fds, size)
        hints = _hints(call)
        validate(model)
        claims = consider_support(self._device, model, hints, as_is=True)
        kept = self._kept(call.object, ConsideredModel(claims, hints, memory))
        return claims_to_wire(claims.verdicts, claims.groups, kept=kept), ()

    def _kept(self, number: int, considered: ConsideredModel) -> bool:
        """Keep the model under a number. If its quota is exhausted, drop it; its preparation then starts again."""
        try:
            claim = self._share.take(considered=1, memory=considered.memory)
            self._exports.add(number, considered, considered.claims.release_work, claim)
        except ResourceExhausted:
            return False
        return True

    def prepare(self, call: wire.PrepareModel, fds: Descriptors, size: int) -> Answer:
        (model, memory), hints = self._model(call, fds, size), self._with_cache(_hints(call), call.cache)

        def prepare() -> tuple[PreparedChain, Model]:
            return self._prepared(model, hints), model

        return self._prepare_later(call.object, memory, hints.priority, prepare, kept=call.cache != 0)

    def restore(self, call: wire.PrepareModelFromCache, fds: Descriptors, size: int) -> Answer:
        (outline, memory), hints = self._model(call, fds, size), self._with_cache(_hints(call), call.cache)
        if hints.cache is None:
            raise InvalidArgument("prepareModelFromCache: cache is 0, must be the number of held files")
        memory += sum(os.fstat(fd).st_size for fd in hints.cache.files)

        validate_outline(outline)

        def restore() -> tuple[PreparedChain, Model]:
            return checked_prepared(self._device, outline, hints, restore=True, client=self._process), outline

        return self._prepare_later(call.object, memory, hints.priority, restore, "cache")

    def _prepared(self, model: Model, hints: Hints) -> PreparedChain:
        validate(model)
        prepared = checked_prepared(self._device, model, hints, as_is=True, client=self._process)
        release_weights(prepared, model, self._where)
        return prepared

    def hold_files(self, call: wire.HoldFiles, fds: Descriptors) -> Answer:
        count = call.model_files + call.data_files
        with self._share.take(descriptors=count) as claim:
            held = ClientFiles(fds, count)
            weakref.finalize(held, claim.moved_to().give).atexit = False
        files = tuple(held.owner.fds)
        cache = Cache(call.token, files[: call.model_files], files[call.model_files :], held)
        self._exports.add(call.object, cache, lambda: None)
        return DONE

    def _with_cache(self, hints: Hints, number: int) -> Hints:
        return replace(hints, cache=self._exports.get(number, Cache, "cache files")) if number else hints

    def prepare_considered(self, call: wire.PrepareConsidered, _: Descriptors) -> Answer:
        claims, hints, memory = self._exports.get(call.considered, ConsideredModel, "considered model")
        places, count = call.operations, len(claims.model.main.operations)
        if any(a >= b for a, b in pairwise(places)) or any(place >= count for place in places):
            raise InvalidArgument(
                f"prepareModel: operations of a partition must be in order, each once, and below {count}"
            )

        hints = self._with_cache(hints, call.cache)

        def prepare() -> tuple[PreparedChain, Model]:
            part = extract_part(claims.model, places or range(count)).model.again()  # its constants may be released
            return self._prepared(part, claims.hints(hints, places or None)), part

        return self._prepare_later(call.object, memory, hints.priority, prepare, kept=call.cache != 0)

    def _counted(
        self, prepare: Callable[[], tuple[PreparedChain, Model]], source: str, kept: bool
    ) -> tuple[PreparedChain, Model]:
        """Prepare, and count it if the service has metrics."""
        if self._tally is None:
            return prepare()
        metrics, began, outcome = self._tally.metrics, time.monotonic_ns(), OK
        try:
            prepared, model = prepare()
            for link in prepared.queues:
                metrics.watch(link.queue)
            return prepared, model
        except BaseException as error:
            outcome = outcome_of(error)
            raise
        finally:
            metrics.prepared(source, outcome, time.monotonic_ns() - began, kept=kept)

    def _prepare_later(
        self,
        number: int,
        memory: int,
        priority: Priority,
        prepare: Callable[[], tuple[PreparedChain, Model]],
        source: str = "model",
        *,
        kept: bool = False,
    ) -> Answer:
        """Prepare in the background, and notify. memory: the model's, for the quota. source, kept: see `Metrics`."""
        exports, claim = self._exports, self._share.take(prepared=1, memory=memory)

        def work() -> tuple[wire.ServiceCall, Sequence[int]]:
            result: wire.Acknowledged | wire.Failed | wire.PreparedTraits = wire.DONE
            try:
                if not exports.holds(number):
                    raise Cancelled("prepare: was released before it began")
                prepared, model = self._counted(prepare, source, kept)
                entry = Export(prepared, model, self._where, claim.moved_to(), priority, self._tally)
                exports.fill(number, entry, entry.release)
                traits = wire.PreparedTraits(prepared.weights_consumed, prepared.changeable, prepared.writes_later)
                if traits != wire.PreparedTraits():
                    result = traits
            except BaseException as error:
                exports.release(number)
                result = error_to_wire(error)
                claim.give()
            return wire.NotifyPrepared(number, result), ()

        exports.claim(number)
        try:
            self._client.in_background(work, priority, takes_long=True)
        except BaseException:
            exports.release(number)
            raise
        return DONE

    def memory_use(self, call: wire.GetMemoryUse, _: Descriptors) -> Answer:
        with self._exports.prepared(call.prepared) as entry:
            return wire.WireMemoryUse(*checked_memory_use(entry.prepared, self._where)), ()

    def reconfigure(self, call: wire.Reconfigure, _: Descriptors, plain: Control) -> Answer:
        with self._exports.prepared(call.prepared) as entry:
            checked_reconfigure(entry.prepared, self._where, options_from_wire(call.options), plain)
        return DONE


def _hints(call: _OfModel) -> Hints:
    preference = Preference.FAST_SINGLE_ANSWER if call.preference is None else call.preference
    priority = Priority.MEDIUM if call.priority is None else call.priority
    if preference not in Preference.__members__.values():
        raise InvalidArgument(f"preference is {preference}, must be one of {', '.join(Preference.__members__)}")
    if priority not in Priority.__members__.values():
        raise InvalidArgument(f"priority is {priority}, must be one of {', '.join(Priority.__members__)}")
    if call.threads > MOST_THREADS:
        raise InvalidArgument(f"threads is {call.threads}, must be at most {MOST_THREADS}")
    deadline = call.deadline or None
    return Hints(Preference(preference), Priority(priority), call.threads, deadline, options_from_wire(call.options))

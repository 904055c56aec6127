"""The ways in which a drawn graph runs on a device, and their comparison with the reference."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from nnhal import api
from nnhal.base.errors import NnhalError
from nnhal.base.operands import Array, fixed
from nnhal.base.records import replace
from nnhal.conformance.evaluation import Evaluated, evaluate
from nnhal.conformance.graph_drawing import is_data
from nnhal.conformance.suites.suite import PREPARING, CaseFailed, NotSupported
from nnhal.conformance.switching import switching_often
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.host import run_resolved
from nnhal.hal.request import UNLIMITED
from nnhal.hal.wrappers import Limited
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.runtime import discovery
from nnhal.runtime.compilation import CONTROL_FLOW
from nnhal.runtime.compiled import Compiled
from nnhal.runtime.partition import Offer

THREADS = 4
REPEATS = 8  # executions of each thread
SHARES = 1.0, 0.5  # of what a device supports that it gets inside control flow
VECTOR = 64  # bytes to which caller memory is not aligned

Sets = Sequence[Sequence[Array]]
At = Callable[[str], None]


class Subjects(NamedTuple):
    """The arguments of a way: the device, the model, sets of inputs, and where to announce calls of the driver."""

    device: Device
    model: Model
    sets: Sets
    at: At
    seed: int = 0

    def wanted(self) -> list[Evaluated]:
        """Evaluate the model on each set of inputs."""
        self.at(PREPARING)
        in_a_row = "long_sums" in self.device.relaxations
        return [evaluate(self.model, inputs, self.seed, in_a_row=in_a_row) for inputs in self.sets]


Way = Callable[[Subjects], str]


@contextmanager
def prepared(s: Subjects) -> Iterator[Prepared]:
    """Prepare the model as a whole; NotSupported if the device refuses a part of it."""
    s.at("supports")
    with ExitStack() as held:
        claims = consider_support(s.device, s.model, Hints())
        held.callback(claims.release_work)
        refused = [*claims.refused().values()]
        if refused:
            raise NotSupported(refused[0])
        s.at("prepare")
        made = held.enter_context(closing(checked_prepared(s.device, s.model, claims.hints(Hints()))))
        s.at("run")
        yield made
        s.at("close")


def run(made: Prepared, inputs: Sequence[Array], rooms: Sequence[Array | None] | None = None) -> list[Array | None]:
    """Execute once."""
    request = made.request(inputs, rooms)
    request.execute(partial(run_resolved, made), UNLIMITED)
    return request.results


def whole(s: Subjects) -> str:
    """Run the sets of inputs one after another, one that differs from the first in a few last elements, and that again."""
    other = s._replace(sets=[with_other_ends(s.sets[0])])
    wanted = s.wanted()
    with suppress(NnhalError):  # the reference rejects some, such as boxes with other corners
        wanted += other.wanted()
        s = s._replace(sets=[*s.sets, *other.sets])
    with prepared(s) as made:
        for turn, number in enumerate([*range(len(s.sets)), 0]):
            problem = wanted[number].differences(run(made, s.sets[number]))
            if problem:
                return problem + (f" (execution {turn + 1})" if turn else "")
    return ""


def unaligned(s: Subjects) -> str:
    """Run with inputs and outputs at addresses that no vector is aligned to."""
    wanted = s.wanted()[0]
    with prepared(s) as made:
        rooms = []
        values = validate(s.model).subgraphs[0].values
        for n, index in enumerate(s.model.main.outputs):
            known = fixed(values[index].shape)  # type: ignore[union-attr]  # an output has a value
            rooms.append(
                None if known is None or not wanted.outputs[n].size else shifted(np.zeros_like(wanted.outputs[n]))
            )
        results = run(made, [shifted(x) for x in s.sets[0]], rooms)
        problem = wanted.differences(results)
        return problem and f"with unaligned memory: {problem}"


def shifted(array: Array) -> Array:
    """Return a copy whose address is aligned to its elements, and not to a vector."""
    if not array.size or not array.ndim:
        return array
    room = np.zeros(array.nbytes + 2 * VECTOR, np.uint8)
    start = -room.ctypes.data % VECTOR + array.itemsize
    copy = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def threads(s: Subjects) -> str:
    """Run one prepared model from several threads at once, each with other inputs than its neighbour."""
    wanted = s.wanted()
    with prepared(s) as made:
        begin, problems = threading.Barrier(THREADS), list[Any]()

        def work(number: int) -> None:
            which = number % len(s.sets)
            begin.wait()
            try:
                for _ in range(REPEATS):
                    problem = wanted[which].differences(run(made, s.sets[which]))
                    if problem or problems:
                        problems.extend([problem] if problem else [])
                        return
            except Exception as error:  # reported by the thread that waits
                problems.append(error)

        with switching_often():
            workers = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(THREADS)]
            for each in workers:
                each.start()
            for each in workers:
                each.join()
        for found in problems:
            if isinstance(found, Exception):
                raise found
        return f"under {THREADS} threads: {problems[0]}" if problems else ""


def shared(share: float, seed: int) -> Callable[[Model, Sequence[Offer]], list[str]]:
    """Return a placement on the first device of a share of what it supports; else on the last one that supports it."""
    drawn = np.random.default_rng([seed, 7]).random(4096) < share

    def decide(model: Model, offers: Sequence[Offer]) -> list[str]:
        labels = []
        for n in range(len(model.main.operations)):
            able = [offer.device for offer in offers if offer.verdicts[n].ok]
            here = offers[0].verdicts[n].ok and drawn[n % len(drawn)]
            labels.append((able or [""])[0 if here else -1])
        return labels

    return decide


def interpreted_model(model: Model, device: Device, share: float, seed: int) -> Compiled:
    """Compile a model for a device and the CPU, with control flow executed by the runtime.

    share: of the operations that the device supports, those that it gets. seed: of the choice.
    """
    both = [
        Limited(each, lambda model, n: model.main.operations[n].type not in CONTROL_FLOW, "left to the runtime")
        for each in (device, discovery.cpu())
    ]
    placement = shared(share, seed)
    return api.compile(model, devices=both, placement=placement, fallback="forbid", cache_dir=False)


def interpreted(s: Subjects) -> str:
    """Run control flow by the runtime: what is inside is on the device as far as possible, then about half of it.

    The sets of inputs run one after another, and the first one again, then in a burst. States are ordinary inputs.
    """
    wanted, model = s.wanted(), replace(s.model, states=())
    for share in SHARES:
        s.at("prepare")
        with interpreted_model(model, s.device, share, s.seed) as compiled, compiled.burst() as burst:
            s.at("run")
            for call in (compiled, burst):
                for turn, number in enumerate([*range(len(s.sets)), 0]):
                    problem = wanted[number].differences(_called(call, s.sets[number]))
                    if problem:
                        where = f"with control flow by the runtime, {share:.0%} on the device"
                        return f"{where}{', in a burst' * (call is burst)}: {problem} (execution {turn + 1})"
    return ""


def partitioned(s: Subjects) -> str:
    """Run through the runtime with about half of the operations on the CPU; carry states from call to call."""
    wanted = s.wanted()[0]
    s.at("prepare")
    compiled = api.compile(
        s.model,
        devices=[s.device, discovery.cpu()],
        placement=shared(0.5, s.seed),
        fallback="forbid",
        cache_dir=False,
    )
    with compiled, closing(compiled.stream()) as call:
        s.at("run")
        inputs = dict(enumerate(s.sets[0]))
        states = {state.input: state for state in s.model.states}
        results = _called(call, [x for n, x in inputs.items() if n not in states])
        hidden = {state.output for state in s.model.states}
        shown = [n for n in range(len(s.model.main.outputs)) if n not in hidden]
        problem = next(filter(None, (wanted.difference(n, x) for n, x in zip(shown, results, strict=True))), "")
        if problem or not states:
            return problem and f"partitioned: {problem}"
        for state in states.values():
            inputs[state.input] = wanted.outputs[state.output]
        s.at(PREPARING)
        again = evaluate(s.model, [*inputs.values()], s.seed, in_a_row="long_sums" in s.device.relaxations)
        s.at("run")
        results = _called(call, [x for n, x in inputs.items() if n not in states])
        problem = next(filter(None, (again.difference(n, x) for n, x in zip(shown, results, strict=True))), "")
        return problem and f"partitioned, the second call with its state: {problem}"


def _called(call: Any, inputs: Sequence[Array]) -> list[Array]:
    made = call(*inputs)
    return list(made) if isinstance(made, tuple) else [made]


WAYS: Mapping[str, Way] = {
    "whole": whole,
    "unaligned": unaligned,
    "threads": threads,
    "partitioned": partitioned,
    "interpreted": interpreted,
}


def rolled(inputs: Sequence[Array]) -> list[Array]:
    """Return other inputs: real numbers at other places, a condition negated. Integers stay, which may be positions."""
    return [
        np.logical_not(x) if x.dtype.kind == "b" and x.size == 1 else np.roll(x, 1) if is_data(x) else x for x in inputs
    ]


def with_other_ends(inputs: Sequence[Array]) -> list[Array]:
    """Return inputs whose last element is the first one: a device must read each element of each request."""
    return [
        np.concatenate([x.reshape(-1)[:-1], x.reshape(-1)[:1]]).reshape(x.shape) if is_data(x) else x for x in inputs
    ]


def failure(way: str, s: Subjects) -> tuple[str, str]:
    """Run one way; return its problem, and the class of error that it ended in, two empty texts if it agrees."""
    try:
        return WAYS[way](s), ""
    except (NotSupported, CaseFailed):
        raise
    except NnhalError as error:
        return str(error), type(error).__name__

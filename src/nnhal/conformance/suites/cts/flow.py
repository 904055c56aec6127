"""Control flow: IF and WHILE on the device, or run by the runtime with the device's operations inside."""

from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

import nnhal
from nnhal.conformance.control import sources
from nnhal.conformance.differential import arrays_of, model_of, with_other_values
from nnhal.conformance.suites.cts.area import ENOUGH, AreaTrial, SampleModel, area
from nnhal.conformance.suites.suite import NotApplicable, NotSupported
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Device, Hints
from nnhal.model.graph import Model
from nnhal.runtime import discovery

_verdicts: "WeakKeyDictionary[Device, dict[int, tuple[Model, bool]]]" = WeakKeyDictionary()


def _supports(trial: AreaTrial, model: Model) -> bool:
    """Whether the device supports all operations of a model; asked once for each."""
    known = _verdicts.setdefault(trial.device, {})
    if id(model) not in known:
        with trial.at("supports"):
            claims = consider_support(trial.device, model, Hints())
        known[id(model)] = model, not claims.refused()
        claims.release_work()
    return known[id(model)][1]


@area("flow/drawn", "graph", 16, kinds=("IF", "WHILE"))
def drawn(trial: AreaTrial) -> None:
    """IF and WHILE around operations of the device give the results of the reference, for each condition."""
    several = sources(trial.kind, trial.rng, lambda model: _supports(trial, model))
    call = None
    for n in range(8):
        call = several[(trial.number + n) % len(several)](trial.rng)
        if call is not None and all(x.size for x in arrays_of(call)):
            break
    if call is None:
        raise NotApplicable("no drawn call serves")
    model = model_of(call)
    beside = [] if trial.name == discovery.CPU else [discovery.cpu()]
    # Without other rules the CPU may run it whole
    compiled = trial.compile(model, devices=[trial.device, *beside], fallback="allow", placement=_inside(trial))
    for n in range(4):
        SampleModel(trial, call, model, compiled).execute(f"execution {n}, {compiled.placement.summary()}")
        call = with_other_values(call, trial.rng)
    trial.no_fallback(compiled)
    if trial.label not in compiled.placement.devices():
        raise NotSupported("the device supports nothing of it")


def _inside(trial: AreaTrial) -> Any:
    """Return a placement that puts each operation on the device, or leaves it to the runtime or the CPU."""

    def place(model: nnhal.Model, offers: Any) -> list[str]:
        found = []
        for n in range(len(model.main.operations)):
            there = [each.device for each in offers if each.verdicts[n].ok and n not in each.excluded]
            own = [label for label in there if label == trial.label]
            others = [label for label in there if label not in (trial.label, discovery.CPU)]
            found.append((own or others or [""])[0])
        return found

    return place


def _loop(limit: int) -> nnhal.Model:
    """Return a loop that doubles a value `limit` times, with a counter."""
    b = nnhal.Builder("loop")
    counter, x = b.input([1], "TENSOR_INT32"), b.input([2, 3])
    first = b.subgraph()
    n, value = first.input([1], "TENSOR_INT32"), first.input([2, 3])
    condition = first.finish_subgraph([n, value], [first.less(n, np.array([limit], "i4"))])
    body = b.subgraph()
    n, value = body.input([1], "TENSOR_INT32"), body.input([2, 3])
    following = body.finish_subgraph([n, value], [body.add(n, np.array([1], "i4")), body.add(value, value)])
    n, made = b.while_(condition, following, [counter, x], out_type=["TENSOR_INT32", "TENSOR_FLOAT32"], outputs=2)
    return b.finish([counter, x], [n, made])


def _compiled(trial: AreaTrial, model: nnhal.Model) -> nnhal.Compiled:
    beside = [] if trial.name == discovery.CPU else [discovery.cpu()]
    compiled = trial.compile(model, devices=[trial.device, *beside], fallback="allow", placement=_inside(trial))
    if trial.label not in compiled.placement.devices():
        raise NotSupported("the device supports nothing of it")
    return compiled


@area("flow/iterations", "once")
def iterations(trial: AreaTrial) -> None:
    """The number of iterations follows the counter: none, one, several."""
    compiled = _compiled(trial, _loop(5))
    x = trial.rng.uniform(-2, 2, (2, 3)).astype("f4")
    for begin in (5, 4, 0, 9, -3):
        n, y = trial.execute(partial(compiled, np.array([begin], "i4"), x))
        times = max(0, 5 - begin)
        trial.require(
            n.tolist() == [max(begin, 5)], f"counter from {begin} ends at {n.tolist()}, must be {max(begin, 5)}"
        )
        trial.require((y == x * 2**times).all(), f"value after {times} iterations is {y.ravel()[:3]}")


@area("flow/exchanged", "once")
def exchanged(trial: AreaTrial) -> None:
    """A body reads all loop variables as they were before the iteration: two of them change places."""
    b = nnhal.Builder("exchange")
    given = b.input([1], "TENSOR_INT32"), b.input([4]), b.input([4])
    first = b.subgraph()
    n, x, y = first.input([1], "TENSOR_INT32"), first.input([4]), first.input([4])
    condition = first.finish_subgraph([n, x, y], [first.less(n, np.array([4], "i4"))])
    body = b.subgraph()
    n, x, y = body.input([1], "TENSOR_INT32"), body.input([4]), body.input([4])
    results = body.add(n, np.array([1], "i4")), body.add(y, np.float32(0)), body.add(x, y)
    following = body.finish_subgraph([n, x, y], list(results))
    out_type = ["TENSOR_INT32", "TENSOR_FLOAT32", "TENSOR_FLOAT32"]
    compiled = _compiled(trial, b.finish(given, b.while_(condition, following, given, out_type=out_type, outputs=3)))
    data = np.array([1, -2, 0.5, 3], "f4"), np.array([3, 1, 4, -2], "f4")
    for begin in (4, 3, 0):
        wanted = data
        for _ in range(4 - begin):
            wanted = wanted[1], wanted[0] + wanted[1]
        _, *made = trial.execute(partial(compiled, np.array([begin], "i4"), *data))
        trial.require(
            all((y == w).all() for y, w in zip(made, wanted, strict=True)),
            f"variables after {4 - begin} iterations are {made[0].tolist()} and {made[1].tolist()}, "
            f"must be {wanted[0].tolist()} and {wanted[1].tolist()}",
        )


@area("flow/timeout", "once")
def timeout(trial: AreaTrial) -> None:
    """A loop that ends too late raises LoopTimeout, one with time ends, and both leave the model usable."""
    compiled = _compiled(trial, _loop(2**31 - 1))
    x = np.ones((2, 3), "f4")
    start, late = np.array([0], "i4"), np.array([2**31 - 3], "i4")
    trial.must_raise(
        nnhal.LoopTimeout, "an endless loop", lambda: compiled.run(start, x, loop_timeout=0.05, deadline=ENOUGH)
    )
    trial.must_raise(
        nnhal.MissedDeadline, "an endless loop with a deadline", lambda: compiled.run(start, x, deadline=0.05)
    )
    n, y = trial.execute(lambda: compiled.run(late, x, loop_timeout=10.0)[0])
    trial.require(
        n.tolist() == [2**31 - 1] and (y == 4 * x).all(), f"results after a time-out are {n}, {y.ravel()[:3]}"
    )


@area("flow/nested", "once")
def nested(trial: AreaTrial) -> None:
    """An IF in the body of a WHILE: doubles while the counter is small, then subtracts."""
    b = nnhal.Builder("nested")
    counter, x = b.input([1], "TENSOR_INT32"), b.input([4])
    first = b.subgraph()
    n, value = first.input([1], "TENSOR_INT32"), first.input([4])
    condition = first.finish_subgraph([n, value], [first.less(n, np.array([6], "i4"))])
    body = b.subgraph()
    n, value = body.input([1], "TENSOR_INT32"), body.input([4])
    ways = []
    for kind in ("add", "sub"):
        inner = body.subgraph()
        given = inner.input([4])
        made = inner.add(given, given) if kind == "add" else inner.sub(given, np.float32(1))
        ways.append(inner.finish_subgraph([given], [made]))
    small = body.less(n, np.array([3], "i4"))
    made = body.if_(small, ways[0], ways[1], [value], out_type="TENSOR_FLOAT32", outputs=1)
    following = body.finish_subgraph([n, value], [body.add(n, np.array([1], "i4")), made])
    out = b.while_(condition, following, [counter, x], out_type=["TENSOR_INT32", "TENSOR_FLOAT32"], outputs=2)
    compiled = _compiled(trial, b.finish([counter, x], list(out)))
    data = np.array([1, -2, 0.5, 3], "f4")
    for begin in (0, 2, 4, 6):
        _, y = trial.execute(partial(compiled, np.array([begin], "i4"), data))
        wanted = data * 2 ** max(0, 3 - begin) - min(3, max(0, 6 - begin))
        trial.require((y == wanted).all(), f"counter from {begin}: result is {y.tolist()}, must be {wanted.tolist()}")

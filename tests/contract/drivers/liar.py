"""A driver whose answer to one query is one piece of nonsense; all else that it does is right.

A lie is "query nonsense", or "query nonsense later" where the first answer is right. What the device says of itself it lies
about as `NNHAL_LIE` says, all else as the name of the model says: so one process tells many lies. Its model is y = x + x.
"""

import asyncio
import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np

from nnhal.base import errors
from nnhal.base.codes import DeviceStatus, DeviceType, OperandType
from nnhal.base.levels import FL8
from nnhal.hal.background import FencedExecution
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.device import YES, Capabilities, Device, Hints, Performance, Prepared, Verdict
from nnhal.hal.host import HostBuffer, LocalBurst
from nnhal.hal.memory import Buffer, BufferDesc
from nnhal.hal.request import Timing

Answer = Callable[[Callable[[], Any]], Any]  # what is answered in place of what is right


class Untellable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Mute(errors.OperationFailed):
    """An error of nnhal's whose text cannot be had."""

    __str__ = Untellable.__str__


class Babbling(errors.OperationFailed):
    """One that says what it likes."""

    def __str__(self) -> str:
        return "\ud800\0" * 20000


class Bare(BaseException):
    pass


def awkward(method: str, base: type = object) -> Any:
    """An object one of whose methods raises."""

    def fail(*_: Any) -> Any:
        raise RuntimeError(f"no {method}")

    return type("Awkward", (base,), {method: fail})


def raising(error: Callable[[], BaseException]) -> Answer:
    def answer(_: Any) -> Any:
        raise error()

    return answer


def saying(value: Any) -> Answer:
    return lambda _: value


def _values() -> Iterator[tuple[str, Any]]:
    plain = (None, 42, -1, 2.5, True, False, "x", "", b"x", [], [None], {}, (), {"x": 1}, {None: None}, {"x"}, 1j)
    yield from ((repr(value).replace(" ", ""), value) for value in plain)
    yield from (("nan", float("nan")), ("inf", float("inf")), ("huge", 10**400), ("object", object()))
    yield from (("long", "x" * 10**6), ("surrogate", "\ud800"), ("nul", "a\0b"), ("lines", "a\nb"), ("type", Device))
    yield from (("array", np.zeros((2, 3))), ("array-of-objects", np.array([None, object()])), ("function", awkward))
    for method in ("str", "repr", "eq", "iter", "bool", "len", "hash", "getattribute", "call"):
        yield f"no-{method}", awkward(f"__{method}__")()
    yield from ((f"text-without-{m}", awkward(f"__{m}__", str)("liar")) for m in ("eq", "repr", "len", "hash"))
    yield from ((f"list-without-{m}", awkward(f"__{m}__", list)([1])) for m in ("iter", "len", "repr"))
    yield from ((f"dict-without-{m}", awkward(m, dict)({1: 2})) for m in ("items", "__iter__", "__getitem__"))


VALUES = dict(_values())
FEW = {n: VALUES[n] for n in ("None", "-1", "'x'", "nan", "surrogate", "long", "array", "no-repr", "no-eq", "no-bool")}
OWN = "KeyboardInterrupt"  # may be the application's


def _errors() -> Iterator[tuple[str, Callable[[], BaseException]]]:
    for kind in (ValueError, TimeoutError, TypeError, AttributeError, OSError, KeyError, AssertionError, UnicodeError):
        yield kind.__name__, lambda kind=kind: kind("of its own")
    for kind in (MemoryError, RecursionError, StopIteration, GeneratorExit, KeyboardInterrupt, SystemExit, Bare):
        yield kind.__name__, kind
    yield from (("CancelledError", asyncio.CancelledError), ("Untellable", Untellable), ("Mute", Mute))
    yield "Babbling", Babbling
    for name, found in vars(errors).items():
        if isinstance(found, type) and issubclass(found, errors.NnhalError):
            yield name, lambda found=found: found("of its own")


ERRORS = dict(_errors())
EVERY: dict[str, Answer] = {
    **{name: saying(value) for name, value in VALUES.items()},
    "generator": lambda _: (x for x in (1, 2)),
    "endless": lambda _: itertools.count(),
    **{name: raising(error) for name, error in ERRORS.items()},
}


# ------------------------------------------------------------------------------------------- nonsense of the right type


def _capabilities() -> Iterator[tuple[str, Answer]]:
    f32, good = OperandType.TENSOR_FLOAT32, Performance(0.001, 0.001)
    for name, value in FEW.items():
        for place in ("operands", "relaxed_scalar", "relaxed_tensor", "if_performance", "while_performance"):
            yield f"{place}={name}", saying(Capabilities(**{place: value}))
        yield f"figures={name}", saying(Capabilities({f32: value}))
        yield f"time={name}", saying(Capabilities({f32: Performance(value, 1.0)}))
        yield f"power={name}", saying(Capabilities({f32: Performance(1.0, value)}))
        if name not in ("array", "no-eq"):  # cannot be keys
            yield f"type={name}", saying(Capabilities({value: good}))
    yield "time=0", saying(Capabilities({f32: Performance(0.0, 1.0)}))
    yield "time=huge", saying(Capabilities({f32: Performance(VALUES["huge"], 1.0)}))
    yield "without-fields", lambda _: Capabilities.__new__(Capabilities)
    yield "many-types", saying(Capabilities(dict.fromkeys(range(10**5), good)))


def _supports() -> Iterator[tuple[str, Answer]]:
    for name, value in FEW.items():
        yield f"verdict={name}", saying([value])
        yield f"ok={name}", saying([Verdict(value)])
        yield f"reason={name}", saying([Verdict(True, value)])
    yield from (("too-long", saying([YES] * 3)), ("endless-verdicts", lambda _: itertools.repeat(YES)))
    yield from (("tuples", saying([(True, "")])), ("numpy", saying(np.array([True]))))
    yield "one-by-one", lambda right: iter(right())


def _texts() -> Iterator[tuple[str, Answer]]:
    yield from ((f"element={name}", saying((value,))) for name, value in FEW.items())
    yield "many", saying(["x"] * 10**5)


def _prepared() -> Iterator[tuple[str, Answer]]:
    yield from (("class", saying(Told)), ("before", _before))
    for method in ("bool", "len", "eq", "hash", "repr"):
        yield f"prepared-without-{method}", lambda right, m=method: _but(right(), awkward(f"__{m}__"))
    yield "model-that-is-fixed", lambda right: _but(right(), type("Fixed", (), {"model": property(lambda _: None)}))


def _but(item: Any, mixin: type) -> Any:
    item.__class__ = type("Odd", (mixin, type(item)), {"__hash__": vars(mixin).get("__hash__") or object.__hash__})
    return item


_kept: dict[type, Any] = {}


def _before(right: Callable[[], Any]) -> Any:
    made = right()
    return _kept.setdefault(type(made), made)


def _buffers() -> Iterator[tuple[str, Answer]]:
    yield from (("class", saying(HostBuffer)), ("before", _before), ("empty", lambda _: HostBuffer.__new__(HostBuffer)))

    def other(right: Callable[[], Any]) -> Buffer:
        return HostBuffer(BufferDesc((1, 1)), [])

    def smaller(right: Callable[[], Any]) -> Buffer:
        made = right()
        made.facts = made.facts._replace(dimensions=(1, 1))
        return made

    yield from (("no-roles", other), ("smaller", smaller))


def _bursts() -> Iterator[tuple[str, Answer]]:
    yield from (("class", saying(LocalBurst)), ("before", _before))
    yield "empty", lambda _: LocalBurst.__new__(LocalBurst)

    class Sticking(Burst):
        def __init__(self, inner: Burst) -> None:
            self.run = inner.run  # type: ignore[method-assign]

        def run(self, *_: Any) -> Any: ...

        def close(self) -> None:
            raise RuntimeError("does not close")

    yield "sticking", lambda right: Sticking(right())


def _fenced() -> Iterator[tuple[str, Answer]]:
    yield from (("class", saying(FencedExecution)), ("unfinished", lambda _: FencedExecution(None)))
    yield "empty", lambda _: FencedExecution.__new__(FencedExecution)

    class Odd(FencedExecution):
        def __init__(self, inner: FencedExecution, info: Answer) -> None:
            super().__init__(inner.fence)
            self._inner, self._answer = inner, info
            inner.when_ended(lambda: self.finish(None, None))

        def get_execution_info(self) -> Any:
            return self._answer(self._inner.get_execution_info)

    for name, value in FEW.items():
        yield f"fence={name}", lambda _, value=value: FencedExecution(value)
        yield f"info={name}", lambda right, value=value: Odd(right(), saying(value))
        yield f"launched={name}", lambda right, v=value: Odd(right(), lambda r: r()._replace(launched=v))
    for name in ("ValueError", "CancelledError", "Mute", "Bare", "Untellable"):
        yield f"info-{name}", lambda right, name=name: Odd(right(), raising(ERRORS[name]))


def _executors() -> Iterator[tuple[str, Answer]]:
    yield "class", saying(BurstExecutor)


def _notified() -> Iterator[tuple[str, Answer]]:
    """What `execute` gives or raises when it has launched, or notifies in place of the end; `right` takes that."""
    for name, answer in EVERY.items():
        yield f"launched-{name}" if name in ERRORS else name, lambda right, answer=answer: (right(), answer(right))[1]
    for name, value in {**VALUES, **{n: e() for n, e in ERRORS.items()}}.items():
        yield f"error={name}", lambda right, value=value: right(value)
        yield f"timing={name}", lambda right, value=value: right(None, value)
    yield "twice", lambda right: (right(), right())
    yield "times", lambda right: right(None, Timing(5, 3))


ABOUT_ITSELF = ("name", "version", "type", "level", "extensions", "relaxations", "preferred_layout")
AT_LOAD = (*ABOUT_ITSELF, "capabilities", "constructor")
BY_MODEL = {
    "supports": _supports,
    "prepare": _prepared,
    "status": tuple,
    "allocate": _buffers,
    "burst": _bursts,
    "burst_executor": _executors,
    "burst_opened": tuple,
    "burst_closed": tuple,
    "execute": _notified,
    "execute_fenced": _fenced,
    "close": tuple,
    "device_close": tuple,
}
SPECIAL: Mapping[str, Callable[[], Any]] = {
    "capabilities": _capabilities,
    "extensions": _texts,
    "relaxations": _texts,
    "constructor": lambda: [("class", saying(Liar))],
    **BY_MODEL,
}


@cache
def nonsense_about(query: str) -> dict[str, Answer]:
    """By name; some of it is what some queries may answer."""
    return EVERY | dict(SPECIAL.get(query, tuple)())


QUERIES = (*AT_LOAD, *BY_MODEL)


# ------------------------------------------------------------------------------------------------------------ the driver


class Lies:
    """One lie, and how often it was told or held back."""

    def __init__(self, lie: str) -> None:
        self.query, self.nonsense, *later = lie.split(" ") if lie.count(" ") else ("", "")
        self.later, self.asked = bool(later), 0

    def answer(self, query: str, right: Callable[..., Any]) -> Any:
        if query != self.query:
            return right()
        self.asked += 1
        if self.later and self.asked == 1:
            return right()
        return nonsense_about(query)[self.nonsense](right)


class Told(Prepared):
    def __init__(self, lies: Lies) -> None:
        self.lies = lies

    def run(self, request: Any, control: Any) -> None:
        (x,) = request.inputs
        request.write(0, x + x)

    def execute(self, request: Any, control: Any, notify: Any) -> Any:
        def right(error: Any = None, *timing: Any) -> None:
            def tell(*told: Any) -> None:
                notify(*told) if error is None and not timing else notify(error, *timing or (None,))

            Prepared.execute(self, request, control, tell)

        return self.lies.answer("execute", right)

    def execute_fenced(self, *arguments: Any) -> Any:
        return self.lies.answer("execute_fenced", lambda: Prepared.execute_fenced(self, *arguments))

    def burst(self) -> Any:
        return self.lies.answer("burst", lambda: LocalBurst(self))

    def burst_executor(self) -> Any:
        return self.lies.answer("burst_executor", lambda: None)

    def burst_opened(self) -> Any:
        return self.lies.answer("burst_opened", lambda: None)

    def burst_closed(self) -> Any:
        return self.lies.answer("burst_closed", lambda: None)

    def close(self) -> Any:
        return self.lies.answer("close", lambda: None)


class Liar(Device):
    def __init__(self) -> None:
        self.itself, self.model = Lies(os.environ.get("NNHAL_LIE", "")), Lies("")

    def capabilities(self) -> Any:
        return self.itself.answer("capabilities", lambda: Capabilities.uniform(0.001, 0.001))

    def supports(self, model: Any) -> Any:
        if f"{self.model.query} {self.model.nonsense}" != " ".join(model.name.split(" ")[:2]):
            self.model = Lies(model.name)
        return self.model.answer("supports", lambda: [YES] * len(model.main.operations))

    def prepare(self, model: Any, hints: Hints) -> Any:
        return self.model.answer("prepare", lambda: Told(self.model))

    def status(self) -> Any:
        return self.model.answer("status", lambda: DeviceStatus.AVAILABLE)

    def allocate(self, desc: Any, roles: Any) -> Any:
        return self.model.answer("allocate", lambda: HostBuffer(desc, roles))

    def close(self) -> Any:
        return self.model.answer("device_close", lambda: None)


_RIGHT = ("liar", "1", DeviceType.OTHER, FL8, (), (), None)
for _what, _right in zip(ABOUT_ITSELF, _RIGHT, strict=True):
    setattr(Liar, _what, property(lambda self, w=_what, r=_right: self.itself.answer(w, lambda: r)))


def device() -> Any:
    return Lies(os.environ.get("NNHAL_LIE", "")).answer("constructor", Liar)

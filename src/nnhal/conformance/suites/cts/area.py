"""The registry of areas, and the trial of a device: its compilations, executions and comparisons.

An area looks at one promise of the runtime about a device. Its cases are one for each operation, for each type of each
operation, for each of some drawn graphs, or one.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

import nnhal
from nnhal.base.codes import type_name
from nnhal.base.operands import Array
from nnhal.conformance.differential import arrays_of, compare_outputs, model_of, other_constants, with_other_values
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.conformance.reduction import types_of
from nnhal.conformance.suites.suite import PREPARING, Case, CaseFailed, Context, NotApplicable, NotSupported
from nnhal.hal.device import Device, identity_of
from nnhal.ops import OPS
from nnhal.runtime import discovery

Per = Literal["operation", "type", "graph", "once"]
TRIES = 6  # drawn calls of each signature and type, until the device supports one
INSENSITIVE = 4  # drawn calls whose results do not depend on their inputs, until one serves nevertheless
SETTLES = 8  # drawn calls until the reference accepts the values of one
ENOUGH = 30.0  # seconds: a time limit for waits that end at once in a right runtime
COMPILE, EXECUTE = "compile", "execute"  # stages in which the driver works


class Area(NamedTuple):
    """A promise, by name: what is looked at for each case. graphs: how many at scale 1."""

    name: str
    per: Per
    check: Callable[["AreaTrial"], Mapping[str, Any] | None]
    graphs: int = 0
    kinds: tuple[str, ...] = ()


AREAS: dict[str, Area] = {}


def area(name: str, per: Per, count: int = 0, kinds: Sequence[str] = ()) -> Callable[..., Any]:
    """Register a function as the check of an area. kinds: a case for each of these, instead of one."""

    def note(
        check: Callable[["AreaTrial"], Mapping[str, Any] | None],
    ) -> Callable[["AreaTrial"], Mapping[str, Any] | None]:
        assert name not in AREAS
        AREAS[name] = Area(name, per, check, count, tuple(kinds))
        return check

    return note


def cases_of(suite: str, scale: float) -> Iterator[Case]:
    """Yield the cases of all areas, in the order of their registration."""
    operations = {cell.op.name: sorted({type_of(each) for each in cells([cell.op.name])}) for cell in cells()}
    for each in AREAS.values():
        if each.per == "once":
            for kind in each.kinds or ("",):
                yield Case(suite, f"{each.name}/{kind}" if kind else each.name, "", "", (each.name, "", "", kind, 0))
        elif each.per == "graph":
            for kind in each.kinds or ("",):
                name = f"{each.name}/{kind}" if kind else each.name
                for n in range(max(1, round(each.graphs * scale))):
                    yield Case(suite, f"{name}/{n}", "", "", (each.name, "", "", kind, n))
        else:
            for operation, types in operations.items():
                for kind in types if each.per == "type" else ("",):
                    name = f"{each.name}/{operation}/{kind}" if kind else f"{each.name}/{operation}"
                    yield Case(suite, name, operation, kind, (each.name, operation, kind, "", 0))


def type_of(cell: Cell) -> str:
    """Return the name of a cell's type."""
    return type_name(cell.kind)


class AreaTrial:
    """A case on a device: its random numbers, and what it compiles and executes there.

    kind: that of the case, "" if its area has none. number: of the drawn graph. types: the operand types that it tries.
    """

    def __init__(self, case: Case, context: Context) -> None:
        _, self.operation, self.type, self.kind, self.number = case.arguments
        self.device, self.run, self._at, self.types = context.device, context.run, context.at, context.types
        self.name = identity_of(context.device).name
        self.seed = [context.run.seed, zlib.crc32(case.name.encode())]
        self.rng = np.random.default_rng(self.seed)
        self.held = ExitStack()  # closes what the case opened
        self._reference: tuple[nnhal.Model, nnhal.Compiled] | None = None  # of the model that was asked last

    @property
    def label(self) -> str:
        """The device's label in placements, where it is the only one of its name."""
        return self.name

    def idle(self) -> None:
        """Note that the suite itself works, after an error that was expected."""
        self._at(PREPARING)

    # ------------------------------------------------------------------------------------------- the driver's calls

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Charge the driver with what happens meanwhile."""
        self._at(stage)
        yield
        self._at(PREPARING)  # not after an error: the last stage names the call that ended the case

    def compile(self, model: Any, devices: Any = None, **settings: Any) -> nnhal.Compiled:
        """Compile for the device, or for these; the case closes it."""
        settings.setdefault("cache_dir", False)
        if not self.types.tries_any and isinstance(model, nnhal.Model):
            self.types.begin(*types_of(model))
        with self.at(COMPILE):
            return self.held.enter_context(
                nnhal.compile(model, devices=self.device if devices is None else devices, **settings)
            )

    def execute(self, work: Callable[[], Any]) -> list[Array]:
        """Return the outputs that a call of a compiled model returns."""
        with self.at(EXECUTE):
            return listed(work())

    # -------------------------------------------------------------------------------------------------------- samples

    def sample(self, fits: Callable[[Call], bool] = lambda call: True, *, open: bool = False) -> "SampleModel":
        """Return a call of the case's operation that the device supports, compiled.

        Its results depend on its inputs, if any drawn call's do: else an input that is not read would not show.

        fits: whether a call may serve. open: whether dimensions are open.

        Raises:
            NotSupported: the device rejects all drawn calls.
        """
        reason = "no drawn call serves"
        refused = _refused.setdefault(self.device, {})
        key = self.operation, self.type, open
        if key in refused:
            reason, rejected = refused[key]
            self.types.begin(*rejected)
            raise NotSupported(reason)
        asked, insensitive = 0, list[SampleModel]()
        for cell in self.choices():
            self.types.begin(type_of(cell))
            for _ in range(TRIES):
                call = draw(cell, self.rng, open=open)
                if not call.given or not all(x.size for x in arrays_of(call)) or not fits(call):
                    continue
                model = model_of(call)
                asked += 1
                try:
                    compiled = self.compile(model, fallback="forbid")
                except nnhal.UnsupportedModel as why:
                    reason = str(why)
                    self.idle()
                    continue
                settled = self.settled(call, model)
                if settled is None:
                    continue
                sample = SampleModel(self, settled[0], model, compiled, settled[1])
                if sample.random or self.sensitive(sample):
                    return sample
                insensitive.append(sample)
                if len(insensitive) == INSENSITIVE:
                    return sample
            serves = any(each.call.cell == cell for each in insensitive)
            self.types.drop() if serves else self.types.end("unsupported")
        if insensitive:
            self.types.begin(type_of(insensitive[0].call.cell))
            return insensitive[0]
        if asked == TRIES * len(self.choices()):  # otherwise another call might be supported
            refused[key] = reason, list(self.types.of_case("unsupported"))
        raise NotSupported(reason)

    def choices(self) -> list[Cell]:
        """Return the signatures and types from which calls are drawn, in random order."""
        found = [
            cell for cell in cells([self.operation]) if cell.values == "ordinary" and self.type in ("", type_of(cell))
        ]
        return [found[n] for n in self.rng.permutation(len(found))]

    def settled(self, call: Call, model: nnhal.Model) -> tuple[Call, list[Array]] | None:
        """Return the call with values that the reference accepts, and its results."""
        for _ in range(SETTLES):
            try:
                return call, self.expected(model, arrays_of(call))
            except nnhal.NnhalError:
                call = with_other_values(call, self.rng)
        return None

    def sensitive(self, sample: "SampleModel") -> bool:
        """Whether other values of all inputs have other results."""
        other = with_other_values(sample.call, self.rng)
        try:
            return differ(self.expected(sample.model, arrays_of(other)), sample.wanted)
        except nnhal.NnhalError:
            return False

    def with_other_constants(self, call: Call) -> tuple[Call, nnhal.Model]:
        """Return a call with other constants, and its model; NotApplicable if the reference rejects them."""
        other = other_constants(call, self.rng)
        model = model_of(other)
        try:
            self.expected(model, arrays_of(other))
        except nnhal.NnhalError as why:
            raise NotApplicable(f"the reference rejects other constants: {why}") from why
        return other, model

    def expected(self, model: nnhal.Model, arrays: Sequence[Array]) -> list[Array]:
        """Return the results of the reference, which stays compiled for other inputs of the same model."""
        if self._reference is None or self._reference[0] is not model:
            compiled = nnhal.compile(model, devices=discovery.cpu(), cache_dir=False)
            self._reference = model, self.held.enter_context(compiled)
        return listed(self._reference[1](*arrays))

    def require(self, truth: Any, reason: str, hint: str = "") -> None:
        """Raise CaseFailed unless it is true."""
        if not truth:
            raise CaseFailed(reason, hint)

    def must_raise(self, errors: Any, where: str, work: Callable[[], Any]) -> BaseException:
        """Return the error of a call that has to end in one of these."""
        names = " or ".join(e.__name__ for e in (errors if isinstance(errors, tuple) else (errors,)))
        try:
            work()
        except errors as error:
            self.idle()
            found: BaseException = error
            return found
        except (nnhal.DeadObject, NotSupported, NotApplicable, CaseFailed):
            raise
        except Exception as error:  # of any class: the driver or the runtime raised it in place of the right one
            raise CaseFailed(f"{where} raises {type(error).__name__} ({error}), must raise {names}") from error
        raise CaseFailed(f"{where} raises nothing, must raise {names}")

    def no_fallback(self, compiled: nnhal.Compiled) -> None:
        """Raise CaseFailed if an execution or a partition of the device under test fell back."""
        placement = compiled.placement
        for each in placement.live:
            if self.label in each.device:
                raise CaseFailed(f"{each.device}: {each.count} executions fell back, must be 0: {each.why}")
        for event in placement.events:
            if self.label in event:
                raise CaseFailed(f"compilation: {event}; the driver must prepare what it supports")


# By device and what was drawn: the reason, and the types that were rejected.
_refused: "WeakKeyDictionary[Device, dict[Any, tuple[str, list[str]]]]" = WeakKeyDictionary()


class SampleModel:
    """A call that the device supports, its model, and the compiled model."""

    def __init__(
        self,
        trial: AreaTrial,
        call: Call,
        model: nnhal.Model,
        compiled: nnhal.Compiled,
        wanted: list[Array] | None = None,
    ) -> None:
        """wanted: the results of the reference, if they are known."""
        self.trial, self.call, self.model, self.compiled = trial, call, model, compiled
        self.wanted = trial.expected(model, arrays_of(call)) if wanted is None else wanted

    @property
    def arrays(self) -> list[Array]:
        """The inputs of an execution."""
        return arrays_of(self.call)

    @property
    def random(self) -> bool:
        """Whether the operation draws its results."""
        return OPS[self.call.cell.op.name].random

    def other(self) -> "SampleModel":
        """Return the same compiled model with other inputs, of which the results are known, and others if possible."""
        trial, found = self.trial, self
        for _ in range(SETTLES):
            call = with_other_values(self.call, trial.rng)
            try:
                wanted = trial.expected(self.model, arrays_of(call))
            except nnhal.NnhalError:  # values that the reference rejects
                continue
            found = SampleModel(trial, call, self.model, self.compiled, wanted)
            if self.random or differ(wanted, self.wanted):
                break
        return found

    def check(self, actual: Sequence[Array], where: str) -> None:
        """Raise CaseFailed unless results are those of the reference, within the operation's tolerance."""
        found = self.problem(actual)
        if found:
            raise CaseFailed(f"{where}: {found}")

    def problem(self, actual: Sequence[Array]) -> str:
        """Return how results differ from those of the reference, "" if they agree."""
        if len(actual) != len(self.wanted):
            return f"results are {len(actual)} arrays, must be {len(self.wanted)}"
        if self.random:
            for n, (a, w) in enumerate(zip(actual, self.wanted, strict=True)):
                if (a.dtype, a.shape) != (w.dtype, w.shape):
                    return f"output {n} is {a.dtype}{list(a.shape)}, must be {w.dtype}{list(w.shape)}"
            return ""
        return compare_outputs(self.call, self.wanted, actual, self.trial.device.relaxations)

    def execute(self, where: str, work: Callable[[], Any] | None = None) -> list[Array]:
        """Execute once and check the results. work: the execution, by default a call of the compiled model."""
        results = self.trial.execute(work or (lambda: self.compiled(*self.arrays)))
        self.check(results, where)
        return results


def differ(results: Sequence[Array], others: Sequence[Array]) -> bool:
    """Whether any element of two lists of results differs."""
    return any(
        x.shape != y.shape or not np.array_equal(x, y, equal_nan=True) for x, y in zip(results, others, strict=True)
    )


def listed(results: Any) -> list[Array]:
    """Return results as a list."""
    return list(results) if isinstance(results, tuple | list) else [results]

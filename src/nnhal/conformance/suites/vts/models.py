"""Invalid models: the 21 mutations, of every supported operation."""

import numpy as np

from nnhal.base.errors import DeadObject, DriverFailed, InvalidArgument, InvalidModel, NnhalError
from nnhal.base.levels import V1_1, V1_3
from nnhal.base.records import replace
from nnhal.conformance.differential import arrays_of, operands_of
from nnhal.conformance.mutate import BAD_HINTS, MUTATIONS, Mutant
from nnhal.conformance.place import place_in
from nnhal.conformance.suites.vts.promise import OPERATION, Look, Probe, named, promise
from nnhal.conformance.validate.trial import PLAIN, RequirementNotMet
from nnhal.hal.chain import checked_prepared
from nnhal.hal.claims import query_verdicts
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.model.validate import validate

MOST = 24  # mutants of a case
SINCE = {"preference": V1_1, "priority": V1_3}  # the HAL version that sends a hint to a driver


def _mutated(kind: str) -> Look:
    """Return a look at the mutants of one kind."""

    def look(probe: Probe) -> int:
        model = _chained(probe) if kind == "execution order" else probe.calls.first()[1]
        if model is None:
            return 0
        found = [
            Mutant(kind, probe.operation, detail, replace(model, main=main))
            for _, detail, main in MUTATIONS[kind](model.main)
        ]
        most = probe.count(MOST)
        if len(found) > most:
            places = np.random.default_rng(probe.suite_run.seed).choice(len(found), most, replace=False)
            found = [found[place] for place in sorted(places)]
        for mutant in found:
            _judged(probe, mutant)
        return len(found)

    return look


def _chained(probe: Probe) -> Model | None:
    """Return a model in which the operation reads its own result, if one of the supported calls can."""
    for call, _ in probe.calls.taken():
        place = None if call.open else call.returns_to()
        if place is not None:
            probe.calls.has_one = True
            out = call.outputs[0]
            b = ModelBuilder(f"{call.cell} twice")
            indices, given, made = operands_of(call, b)
            b.operation(call.cell.op.code, indices, made)
            end = b.operand(out.type, out.known, out.scale, out.zero_point)
            b.operation(call.cell.op.code, [*indices[:place], made[0], *indices[place + 1 :]], [end])
            return b.finish(given, [end], extensions=b.extensions())
    return None


def _judged(probe: Probe, mutant: Mutant) -> None:
    """Raise RequirementNotMet if a driver accepts an invalid mutant, or cannot prepare a valid one that it accepts.

    A prepare() after a negative verdict is outside the contract of a driver, so only a service has to refuse it.
    """
    try:
        validate(mutant.model)
        valid = True
    except InvalidModel:
        valid = False
    accepted = _accepted(probe, mutant)
    if accepted and not valid:
        raise RequirementNotMet(
            f"supports() accepts a model with {mutant.kind}: {mutant.detail}", probe.place("supports")
        )
    if not accepted and (valid or not probe.isolated):
        return
    try:
        with probe.stages.enter("prepare"):
            prepared = checked_prepared(probe.device, mutant.model, PLAIN)
    except DeadObject:
        raise
    except NnhalError as error:
        if valid:
            text = f"supports() accepts {mutant.kind}: {mutant.detail}, which is valid; prepare(): {named(error)}"
            raise RequirementNotMet(text, place_in(error.stack)) from error
        return
    probe.close(probe.opened(prepared))
    if not valid:
        raise RequirementNotMet(f"prepare() accepts a model with {mutant.kind}: {mutant.detail}, must be an error")


def _accepted(probe: Probe, mutant: Mutant) -> bool:
    try:
        with probe.stages.enter("supports"):
            verdicts = query_verdicts(probe.device, mutant.model)
    except DriverFailed as error:
        text = f"supports() of a model with {mutant.kind}: {mutant.detail}: {named(error)}, must be no or InvalidModel"
        raise RequirementNotMet(text, place_in(error.stack)) from error
    except NnhalError:
        return False
    return bool(verdicts) and all(verdict.ok for verdict in verdicts)


for _kind in MUTATIONS:
    promise(
        f"models/{_kind.replace(' ', '-')}",
        "An invalid model is refused, with a negative verdict or an error.",
        OPERATION,
        unseen="the operation has no such mutant",
    )(_mutated(_kind))


def _hinted(field: str) -> Look:
    """Return a look at values of a hint that do not exist."""

    def look(probe: Probe) -> int:
        call, model = probe.calls.first()
        wanted = None if probe.calls.random else probe.alone(model, arrays_of(call))
        for value in BAD_HINTS[field]:
            try:
                with probe.stages.enter("prepare"):
                    prepared = checked_prepared(probe.device, model, replace(PLAIN, **{field: value}))
            except DeadObject:
                raise
            except (InvalidArgument, DriverFailed):
                continue
            probe.opened(prepared)
            if probe.isolated and probe.device.level >= SINCE[field]:
                raise RequirementNotMet(f"prepare() accepts {field} {value!r}, must be InvalidArgument")
            if wanted is not None:  # it is not sent, or nnhal has looked at it before
                probe.right(call, wanted, prepared, f"prepared with {field} {value!r}")
        return len(BAD_HINTS[field])

    return look


for _field in BAD_HINTS:
    promise(f"models/{_field}", f"A {_field} that does not exist is refused, or has no effect.", OPERATION)(
        _hinted(_field)
    )

"""Checks of a driver's attributes and of its answers about models: valid, stable and true."""

import time
from collections.abc import Callable
from typing import Any

from nnhal.base.codes import FOREIGN_OPERATIONS, Preference, Priority, operation_name
from nnhal.base.errors import InvalidArgument, NnhalError
from nnhal.base.extensions import EXTENSIONS
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.place import place_in
from nnhal.conformance.validate.check import SINGLE, check
from nnhal.conformance.validate.trial import PLAIN, RequirementNotMet, Trial, copies
from nnhal.hal.answers import checked_status, driver_capabilities
from nnhal.hal.device import Device, Hints, identity_of
from nnhal.ops import OPS

TIMES = 3  # repetitions of a query
HELD = 16  # prepared models at once


@check(
    "identity", "Name, version, type, HAL version, extensions and relaxations are valid and stay the same.", whole=True
)
def identity(trial: Trial) -> int:
    return _stable(trial, "identity", _afresh)


def _afresh(device: Device) -> Any:
    device._device_state.identity = None
    return identity_of(device)


@check("capabilities", "capabilities() is valid and stays the same.", whole=True)
def capabilities(trial: Trial) -> int:
    return _stable(trial, "capabilities", driver_capabilities)


@check("status", "status() returns a DeviceStatus.", whole=True)
def status(trial: Trial) -> int:
    with trial.stages.enter("status"):
        checked_status(trial.device)
    return 1


def _stable(trial: Trial, what: str, ask: Callable[[Device], Any]) -> int:
    """Count the answers that equal the first one; RequirementNotMet if one differs."""
    answers = []
    for _ in range(TIMES):
        with trial.stages.enter(what):
            answers.append(ask(trial.device))
    for answer in answers[1:]:
        if answer != answers[0]:
            raise RequirementNotMet(f"{_difference(answers[0], answer)}, must stay the same", trial.place(what))
    return len(answers) - 1


def _difference(first: Any, second: Any) -> str:
    names = first._fields if hasattr(first, "_fields") else first.__struct_fields__
    changed = [name for name in names if getattr(first, name) != getattr(second, name)]
    before, after = (str(getattr(each, changed[0])) for each in (first, second))
    return f"{changed[0]} is {before[:100]}, then {after[:100]}"


@check("extensions", "Each extension that the device names is registered, with records of its operations.", whole=True)
def extensions(trial: Trial) -> int:
    names = identity_of(trial.device).extensions
    for name in names:
        if name not in EXTENSIONS:
            raise RequirementNotMet(f"{name} is named, must be registered when the driver loads (register_extension)")
    found = [name for code, name in FOREIGN_OPERATIONS.items() if operation_name(code).rpartition(".")[0] in names]
    missing = [name for name in found if name not in OPS]
    if missing:
        raise RequirementNotMet(
            f"{missing[0]} has no record, must have one as the definition to compare with (ops.schema.register)"
        )
    trial.found = tuple(found)
    return 1


# -------------------------------------------------------------------------------------------------------------- models


@check("verdicts", "supports() returns a verdict for each operation, the same one each time, and raises nothing.", ())
def verdicts(trial: Trial) -> int:
    calls, taken = trial.calls.drawn(), trial.calls.drawing.taken or ()
    for call, model in calls:
        first = any(call is each for each, _ in taken)
        for asked, again in (("for the same model", model), ("for an equal model", model_of(call))):
            now_said = trial.calls.verdict(again)
            if now_said.ok != first:
                text = f"supports() returns {_said(first)}, then {_said(now_said.ok)} {asked}: {now_said.reason}"
                raise RequirementNotMet(f"{text} ({call.cell})", trial.place("supports"))
    trial.calls.taken()  # a type of which each call is rejected is unsupported
    return len(calls)


def _said(ok: bool) -> str:
    return "yes" if ok else "no"


@check("prepares", "An operation that supports() accepts can be prepared.", ("verdicts",))
def prepares(trial: Trial) -> int:
    for call, model in trial.calls.samples():
        try:
            trial.keep(trial.prepare(model))
        except NnhalError as error:
            place = place_in(error.stack) or trial.place("prepare")
            raise RequirementNotMet(
                f"supports() accepts it, prepare() raises {type(error).__name__}: {error} ({call.cell})", place
            ) from error
    return len(trial.calls.samples())


@check(
    "close",
    "close() of a prepared model returns, raises nothing, and releases the model's resources.",
    ("prepares",),
)
def close(trial: Trial) -> int:
    for prepared in trial.kept():
        trial.close(prepared)
    for call, _ in trial.calls.samples():
        trial.close(trial.prepare(model_of(call)))
    call, _ = trial.calls.samples()[0]
    for number in range(HELD):
        try:
            prepared = trial.prepare(model_of(call))
        except NnhalError as error:
            text = f"prepare() after {number} like models were prepared and closed: {type(error).__name__}: {error}"
            raise RequirementNotMet(text, place_in(error.stack) or trial.place("prepare")) from error
        trial.close(prepared)
    return HELD


@check("prepared-anew", "prepare() returns a new Prepared each time.", ("close",))
def prepared_anew(trial: Trial) -> int:
    for _, model in trial.calls.samples():
        for hints in (PLAIN, PLAIN, Hints()):
            trial.prepare(model, hints)
        trial.end()
    return len(trial.calls.samples())


@check("prepared-twice", "Two prepared models of one model are independent.", SINGLE)
def prepared_twice(trial: Trial) -> int:
    for call, _ in trial.calls.samples():
        model = model_of(call)  # nothing was prepared from it yet
        one, other = trial.prepare(model), trial.prepare(model)
        trial.run(one, copies(arrays_of(call)))
        wanted = [None if r is None else r.copy() for r in trial.run(other, copies(arrays_of(call)))]
        trial.close(one)
        try:
            results = trial.run(other, copies(arrays_of(call)))
        except NnhalError as error:
            text = f"after the other of the same model was closed: {type(error).__name__}: {error}"
            raise RequirementNotMet(text, place_in(error.stack) or trial.place()) from error
        trial.same(call, wanted, results, "after the other of the same model was closed")
        trial.close(other)
    return len(trial.calls.samples())


@check("many-prepared", f"{HELD} prepared models can exist at once, and release their resources.")
def many_prepared(trial: Trial) -> int:
    trial.calls.fixed()
    call, model = trial.calls.first()
    wanted = trial.alone(model, arrays_of(call))
    for turn in range(2):
        held = []
        for number in range(HELD):
            try:
                held.append(trial.prepare(model))
            except NnhalError as error:
                when = " after as many were closed" if turn else ""
                text = f"prepared model {number + 1} of {HELD} at once{when}: {type(error).__name__}: {error}"
                raise RequirementNotMet(text, place_in(error.stack) or trial.place("prepare")) from error
        for number, prepared in enumerate(held):
            trial.same(
                call, wanted, trial.run(prepared, copies(arrays_of(call))), f"prepared model {number + 1} of {HELD}"
            )
        for prepared in held:
            trial.close(prepared)
    return HELD


@check("stable-verdicts", "supports() returns the same after models were prepared, ran and were closed.")
def stable_verdicts(trial: Trial) -> int:
    for call, model in trial.calls.samples():
        prepared = trial.prepare(model)
        trial.run(prepared, copies(arrays_of(call)))
        for when in ("while the model is prepared", "after the model was closed"):
            if not trial.calls.verdict(model).ok:
                raise RequirementNotMet(f"supports() returns yes, and no {when}", trial.place("supports"))
            if when.startswith("while"):
                trial.close(prepared)
    return len(trial.calls.samples())


@check("hints", "Preference, priority, threads and a deadline of the compilation change no result.")
def hints(trial: Trial) -> int:
    trial.calls.fixed()
    far = time.monotonic_ns() + 600_000_000_000
    several = [
        *(Hints(preference, threads=1) for preference in Preference),
        *(Hints(priority=priority, threads=1) for priority in Priority),
        *(Hints(threads=threads) for threads in (0, 2)),
        Hints(threads=1, deadline=far),
    ]
    for call, model in trial.calls.samples():
        wanted = trial.alone(model, arrays_of(call))
        for each in several:
            prepared = trial.prepare(model, each)
            trial.same(call, wanted, trial.run(prepared, copies(arrays_of(call))), f"with {_told(each)}")
            trial.close(prepared)
    return len(several)


def _told(each: Hints) -> str:
    default = Hints(threads=1)
    values = [(name, getattr(each, name)) for name in each.__struct_fields__]
    changed = [f"{name} {value!s}" for name, value in values if value != getattr(default, name)]
    return ", ".join(changed) or "the default hints"


@check("options", "An unknown option is ignored, or raises InvalidArgument, and nothing else.")
def options(trial: Trial) -> int:
    _, model = trial.calls.first()
    values = 1, "text"
    for value in values:
        given = {"an unknown option": value}
        try:
            trial.close(trial.prepare(model, Hints(threads=1, options=given)))
        except InvalidArgument:
            continue
        except NnhalError as error:
            text = f"options {given}: {type(error).__name__}: {error}, must be ignored or InvalidArgument"
            raise RequirementNotMet(text, place_in(error.stack) or trial.place("prepare")) from error
    return len(values)

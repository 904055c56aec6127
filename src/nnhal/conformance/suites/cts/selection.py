"""Explicit selection of the device, with and without fallback, and the settings of a compilation."""

from functools import partial
from typing import Any

import numpy as np

import nnhal
from nnhal.conformance.suites.cts.area import AreaTrial, SampleModel, area
from nnhal.conformance.suites.suite import NotApplicable, NotSupported
from nnhal.runtime import discovery

LEAVES_ALONE = 3  # executions


@area("selection/only", "type")
def only(trial: AreaTrial) -> None:
    """A model runs on the selected device alone, and the results are right, also of later executions."""
    sample = trial.sample()
    devices = sample.compiled.placement.devices()
    trial.require(devices == {trial.label: 1}, f"placement is {devices}, must be 1 on {trial.label}")
    sample.execute("first execution")
    sample.other().execute("execution with other inputs")
    sample.execute("execution with the first inputs again")
    trial.no_fallback(sample.compiled)


@area("selection/with-fallback", "operation")
def with_fallback(trial: AreaTrial) -> None:
    """If fallback is allowed, the device still runs what it supports, with the CPU beside it or not.

    A rule chooses the device, because one that declares less performance than the CPU would not be chosen.
    """
    sample = trial.sample()
    settings: list[dict[str, Any]] = [{"fallback": "allow"}, {"fallback": "warn"}]
    if trial.name != discovery.CPU:
        settings.append({"devices": [trial.device, discovery.CPU]})
    for each in settings:
        compiled = trial.compile(sample.model, placement=nnhal.Rule(trial.label), **each)
        devices = compiled.placement.devices()
        where = f"compilation with {', '.join(each)}"
        trial.require(devices == {trial.label: 1}, f"{where}: placement is {devices}, must be 1 on {trial.label}")
        sample.execute(where, partial(compiled, *sample.arrays))
        trial.no_fallback(compiled)


@area("selection/settings", "operation")
def settings(trial: AreaTrial) -> None:
    """Every preference, priority and number of threads gives right results."""
    sample = trial.sample()
    several: list[dict[str, Any]] = [
        *({"preference": each} for each in nnhal.Preference),
        *({"priority": each} for each in nnhal.Priority),
        {"threads": 1},
        {"threads": 2},
    ]
    chosen = [several[n] for n in trial.rng.permutation(len(several))[:3]]
    for each in chosen:
        compiled = trial.compile(sample.model, fallback="forbid", **each)
        (what,) = [f"{key} {getattr(value, 'name', value)}" for key, value in each.items()]
        sample.execute(f"compiled with {what}", partial(compiled, *sample.arrays))


@area("selection/wrong-arguments", "operation")
def wrong_arguments(trial: AreaTrial) -> None:
    """An execution with invalid arguments raises InvalidRequest, and the next one is right."""
    sample = trial.sample()
    arrays, compiled = sample.arrays, sample.compiled
    x = arrays[0]
    larger = np.zeros((*x.shape[:-1], x.shape[-1] + 1) if x.ndim else (2,), x.dtype)
    other = x.astype(np.float64 if x.dtype != np.float64 else np.float32)
    wrong: dict[str, list[Any]] = {
        "an input of another shape": [larger, *arrays[1:]],
        "an input of another type": [np.add(other, 0.5), *arrays[1:]],
        "no inputs": [],
        "one input too many": [*arrays, x],
        "a string": ["x", *arrays[1:]],
    }
    for what, given in wrong.items():
        trial.must_raise(nnhal.InvalidRequest, what, partial(compiled, *given))
    sample.execute("execution after invalid ones")


@area("selection/out-too-small", "operation")
def out_too_small(trial: AreaTrial) -> None:
    """An output array that is too small raises an error that has the true shapes; nothing else changes."""
    sample = trial.sample()
    if sample.wanted[0].size < 2 or sample.random:
        raise NotApplicable("the result is one element")
    rooms = [np.zeros(w.size - (n == 0), w.dtype) for n, w in enumerate(sample.wanted)]
    error = trial.must_raise(
        (nnhal.OutputInsufficientSize, nnhal.InvalidRequest),
        "an output that is too small",
        lambda: sample.compiled(*sample.arrays, out=rooms),
    )
    if isinstance(error, nnhal.OutputInsufficientSize):
        shapes = [tuple(each) if each is not None else None for each in error.shapes]
        wanted = [w.shape for w in sample.wanted]
        trial.require(shapes == wanted, f"OutputInsufficientSize has shapes {shapes}, must be {wanted}")
    sample.execute("execution after one without room")


@area("selection/closed", "operation")
def closed(trial: AreaTrial) -> None:
    """A closed model raises Closed; another compilation of the same model goes on."""
    sample = trial.sample()
    second = trial.compile(sample.model, fallback="forbid")
    sample.execute("first compilation")
    sample.compiled.close()
    sample.compiled.close()
    trial.must_raise(nnhal.Closed, "call after close", lambda: sample.compiled(*sample.arrays))
    trial.must_raise(nnhal.Closed, "burst after close", sample.compiled.burst)
    for n in range(LEAVES_ALONE):
        sample.execute(f"execution {n} of the other compilation", lambda: second(*sample.arrays))


@area("selection/unknown", "once")
def unknown(trial: AreaTrial) -> None:
    """Names that no device has are errors."""
    b = nnhal.Builder()
    x = b.input([2])
    model = b.finish([x], [b.add(x, x)])
    name = f"{trial.name}-unknown"
    error = trial.must_raise(nnhal.DeviceUnavailable, f"device {name}", lambda: trial.compile(model, devices=name))
    trial.require(name in str(error), f"the error does not name {name}: {error}")
    trial.must_raise(
        nnhal.InvalidArgument,
        "options for an unknown device",
        lambda: trial.compile(model, driver_options={name: {"a": 1}}),
    )
    rule = nnhal.Rule(name)
    trial.must_raise(
        nnhal.InvalidArgument, "a rule for an unknown device", lambda: trial.compile(model, placement=rule)
    )


@area("selection/without-devices", "once")
def without_devices(trial: AreaTrial) -> None:
    """A compilation that names no device gives right results, whatever the installed devices are."""
    b = nnhal.Builder()
    x = b.input([3, 4])
    model = b.finish([x], [b.relu(b.add(x, np.float32(1.5)))])
    compiled = trial.compile(model, devices=[each.device for each in nnhal.devices() if each.device is not None])
    data = trial.rng.uniform(-4, 4, (3, 4)).astype("f4")
    (y,) = trial.execute(lambda: compiled(data))
    trial.require(np.allclose(y, np.maximum(data + 1.5, 0), 1e-5, 1e-5), f"results are {y.ravel()[:4]}")


@area("selection/two-of-one", "operation")
def two_of_one(trial: AreaTrial) -> None:
    """Two compilations of models that differ only in constants do not disturb each other."""
    sample = trial.sample(lambda call: call.constants > 0)
    call, model = trial.with_other_constants(sample.call)
    try:
        compiled = trial.compile(model, fallback="forbid")
    except nnhal.UnsupportedModel as why:
        trial.idle()
        raise NotSupported(str(why)) from why
    other = SampleModel(trial, call, model, compiled)
    for _ in range(2):
        sample.execute("first model, beside the second")
        other.execute("second model, beside the first")

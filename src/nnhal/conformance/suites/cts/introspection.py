"""Introspection: what a device reports about itself, and which operations of a model it supports."""

import math
from contextlib import suppress

import nnhal
from nnhal.base.codes import DeviceType
from nnhal.conformance.differential import arrays_of, model_of
from nnhal.conformance.draw import draw
from nnhal.conformance.suites.cts.area import AreaTrial, SampleModel, area
from nnhal.conformance.suites.suite import NotApplicable
from nnhal.hal.answers import driver_capabilities
from nnhal.hal.claims import consider_support
from nnhal.hal.device import Hints, identity_of
from nnhal.runtime import discovery

VERDICTS = 6  # calls of each signature and type


@area("introspection/identity", "once")
def identity(trial: AreaTrial) -> None:
    """Name, version, type and level are those of their kinds, and do not change."""
    device = trial.device
    with trial.at("identity"):
        first = device.name, device.version, device.type, device.level, tuple(device.extensions)
        again = device.name, device.version, device.type, device.level, tuple(device.extensions)
    trial.require(first == again, f"identity is {again} when read again, must be {first}")
    name, version, kind, level, _ = first
    trial.require(isinstance(name, str) and name.strip(), f"name is {name!r}, must be text")
    trial.require(isinstance(version, str) and version, f"version is {version!r}, must be text")
    trial.require(isinstance(kind, DeviceType), f"type is {kind!r}, must be a DeviceType")
    trial.require(isinstance(level, nnhal.Level), f"level is {level!r}, must be a Level")
    trial.require(identity_of(device).name == name, f"name is {name!r}, must be {identity_of(device).name!r}")


@area("introspection/listed", "once")
def listed(trial: AreaTrial) -> None:
    """`nnhal.devices` lists the device once, with the name, version and type that the device itself reports."""
    found = [each for each in nnhal.devices() if each.name == trial.name]
    if not found and trial.name in discovery.engines():
        raise NotApplicable("an engine is listed only after calibration")
    if not found:
        raise NotApplicable(f"{trial.name} is a sample or a device without a driver of its name: not listed")
    trial.require(len(found) == 1, f"{trial.name} is listed {len(found)} times, must be once")
    device = found[0].device
    trial.require(device is not None, f"{trial.name} is listed with an error: {found[0].problem}")
    assert device is not None
    pair = device.version, trial.device.version
    trial.require(pair[0] == pair[1], f"version is {pair[0]!r} in the list, must be {pair[1]!r}")
    trial.require(
        device.type == trial.device.type, f"type is {device.type!r} in the list, must be {trial.device.type!r}"
    )


@area("introspection/performance", "once")
def performance(trial: AreaTrial) -> None:
    """The declared performance is positive and finite, and stays the same over queries and a compilation."""
    with trial.at("capabilities"):
        first = driver_capabilities(trial.device)
    several = [*first.operands.values(), first.relaxed_scalar, first.relaxed_tensor]
    for each in (*several, first.if_performance, first.while_performance):
        for number in each:
            trial.require(math.isfinite(number) and number > 0, f"performance is {number}, must be positive and finite")
    b = nnhal.Builder()
    x = b.input([2, 3])
    with suppress(nnhal.UnsupportedModel):
        trial.compile(b.finish([x], [b.add(x, x)]))
    trial.idle()
    with trial.at("capabilities"):
        again = driver_capabilities(trial.device)
    trial.require(first == again, f"performance is {again} after a compilation, must be {first}")


@area("introspection/verdicts", "operation")
def verdicts(trial: AreaTrial) -> None:
    """The verdict of the same operation is the same each time, before and after a compilation."""
    compiled = False
    for cell in trial.choices() * VERDICTS:
        call = draw(cell, trial.rng)
        if not call.given:
            continue
        model = model_of(call)
        first = _refused(trial, model)
        trial.require(
            _refused(trial, model) == first, f"{cell}: supports() changes its verdict, first it was {first or 'yes'}"
        )
        if compiled:
            continue
        with suppress(nnhal.UnsupportedModel):
            trial.compile(model, fallback="forbid")
            compiled = True
            trial.require(not first, f"{cell}: supports() rejects what compiles: {first}")
        trial.idle()
        trial.require(_refused(trial, model) == first, f"{cell}: supports() changes its verdict after a compilation")


def _refused(trial: AreaTrial, model: nnhal.Model) -> dict[int, str]:
    with trial.at("supports"):
        claims = consider_support(trial.device, model, Hints())
    found = dict(claims.refused())
    claims.release_work()
    return found


@area("introspection/supported-operations", "operation")
def supported(trial: AreaTrial) -> None:
    """The verdict of an operation holds: it is the same again, it compiles, runs, and is placed on the device."""
    sample = trial.sample()
    for _ in range(2):
        refused = _refused(trial, sample.model)
        trial.require(not refused, f"supports() rejects the operation after a compilation: {refused}")
    (choice,) = sample.compiled.placement
    trial.require(choice.device == trial.label, f"operation 0 is on {choice.device!r}, must be on {trial.label!r}")
    devices = sample.compiled.placement.devices()
    trial.require(devices == {trial.label: 1}, f"placement counts {devices}, must be 1 on {trial.label}")
    trial.require(
        sample.compiled.placement.keys[trial.label].version == trial.device.version,
        f"placement has version {sample.compiled.placement.keys[trial.label].version!r}",
    )
    wanted = [(x.dtype, x.shape) for x in sample.arrays]
    specs = [(spec.dtype, spec.fixed) for spec in sample.compiled.inputs]
    trial.require(specs == wanted, f"inputs of the compiled model are {specs}, must be {wanted}")
    sample.execute("call")


@area("introspection/unsupported-operations", "operation")
def unsupported(trial: AreaTrial) -> None:
    """A rejected operation has a reason, which the application receives, and the CPU runs it where it may."""
    for cell in trial.choices():
        call = draw(cell, trial.rng)
        if not call.given or not all(x.size for x in arrays_of(call)):
            continue
        model = model_of(call)
        try:
            trial.compile(model, fallback="forbid")
        except nnhal.UnsupportedModel as error:
            trial.idle()
            text = str(error)
            for word in (trial.name, trial.operation):
                trial.require(word in text, f"the error of an unsupported operation has no {word!r}: {text}")
            settled = trial.settled(call, model)
            if settled is None:
                continue
            compiled = trial.compile(model, fallback="allow")
            devices = compiled.placement.devices()
            trial.require(trial.label not in devices or trial.name == discovery.CPU, f"placement is {devices}")
            SampleModel(trial, settled[0], model, compiled, settled[1]).execute("on the CPU")
            return
    raise NotApplicable("the device supports the drawn calls")

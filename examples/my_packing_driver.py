"""A driver that packs weights: FULLY_CONNECTED of float32, with weights and bias that are constant.

It keeps a copy of its own, transposed, so it needs the model's no more (`weights_consumed`), tells what it holds (`memory`),
and has an option that may change between executions: `gain`, which all results are multiplied by.
What it packed it keeps in a store of its own (`blobs_of`), and does not pack again in the next process.
"""

from hashlib import blake2b

import numpy as np

from nnhal.driver import (
    ACTIVATION_RANGE,
    F32,
    Activation,
    Capabilities,
    Device,
    DeviceType,
    InvalidArgument,
    MemoryUse,
    Prepared,
    blobs_of,
    each_operation,
    validate,
)


class Packed(Prepared):
    weights_consumed = True
    changeable = ("gain",)

    def __init__(self, model, options, blobs):
        self.main, self.layers = model.main, []  # the model's own constants are not kept, nor `validate(model)`
        for operation, a in zip(model.main.operations, validate(model).subgraphs[0].operations, strict=True):
            weights, bias = packed(a.weights.data, blobs), a.bias.data.copy()
            self.layers.append(
                (operation.inputs[0], operation.outputs[0], weights, bias, ACTIVATION_RANGE[a.activation])
            )
        self.reconfigure(options)

    def reconfigure(self, options):
        gain = options.get("gain", 1.0)
        if isinstance(gain, bool) or not isinstance(gain, int | float):
            raise InvalidArgument(f"packing: option gain is {gain!r}, must be a number")
        self.gain = np.float32(gain)

    def memory(self):
        copied = sum(weights.nbytes + bias.nbytes for _, _, weights, bias, _ in self.layers)
        return MemoryUse(weights_copied=copied, weights_in_place=0, working=0)

    def run(self, request, control):
        arrays = dict(zip(self.main.inputs, request.inputs, strict=True))
        for source, target, weights, bias, (low, high) in self.layers:
            control.check()
            x = arrays[source].reshape(-1, len(weights))
            arrays[target] = np.clip(x @ weights + bias, np.float32(low), np.float32(high))
        for place, index in enumerate(self.main.outputs):
            request.write(place, arrays[index] * self.gain)


def packed(weights, blobs):
    """The weights transposed: out of the store of what was packed before, else packed now and put there."""
    key = blake2b(weights, digest_size=16).digest()
    kept = blobs.get(key)
    if kept is not None:
        return np.frombuffer(kept, np.float32).reshape(weights.shape[::-1])
    made = np.array(weights.T, order="C")
    blobs.put(key, made)
    return made


class PackingDevice(Device):
    name, version, type = "packing", "1", DeviceType.ACCELERATOR

    def capabilities(self):
        return Capabilities.uniform(0.5)

    def supports(self, model):
        bounds = dict(zip(model.main.operations, validate(model).subgraphs[0].operations, strict=True))
        return each_operation(model, lambda _, operation: judged(bounds[operation]))

    def prepare(self, model, hints):
        for name in set(hints.options) - {"gain"}:
            raise InvalidArgument(f"packing: option {name!r} is unknown, must be gain")
        return Packed(model, hints.options, blobs_of(self))


def judged(a):
    """Why an operation cannot be run, "" where it can."""
    if a is None or a.op.name != "FULLY_CONNECTED" or a.T != F32:
        return "only FULLY_CONNECTED of float32"
    if a.input.data is not None:
        return "the input must not be constant"
    known = a.weights.data is not None and a.bias.data is not None and isinstance(a.activation, Activation)
    return "" if known else "weights and bias must be constant"


def device():
    return PackingDevice()

"""A whole driver: elementwise arithmetic on float32 tensors. Try it: nnhal run add4 --driver examples/my_driver.py"""

import numpy as np

from nnhal.driver import CONSTANTS, Activation, Device, OperandType, OperationType, Prepared, Verdict, validate

KERNELS = {OperationType.ADD: np.add, OperationType.SUB: np.subtract, OperationType.MUL: np.multiply}


class Elementwise(Prepared):
    def __init__(self, model):
        self.main = model.main
        self.constants = {i: model.constant(o) for i, o in enumerate(model.main.operands) if o.lifetime in CONSTANTS}

    def run(self, request, control):
        arrays = self.constants | dict(zip(self.main.inputs, request.inputs, strict=True))
        for operation in self.main.operations:
            control.check()
            one, other = (arrays[i] for i in operation.inputs[:2])
            arrays[operation.outputs[0]] = KERNELS[operation.type](one, other)
        for place, index in enumerate(self.main.outputs):
            request.write(place, arrays[index])


class MyDevice(Device):
    name = "mine"
    prepare = staticmethod(lambda model, hints: Elementwise(model))

    def supports(self, model):
        return [self.judge(a) for a in validate(model).subgraphs[0].operations]

    def judge(self, a):
        plain = a is not None and a.op.code in KERNELS and a.T == OperandType.TENSOR_FLOAT32
        return Verdict(plain and a.__dict__.get("activation") == Activation.NONE, "only plain ADD, SUB, MUL on float32")


device = MyDevice

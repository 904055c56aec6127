# Python of many kinds.
import collections
import copy
import itertools
import math
import random
from functools import reduce

import numpy as np

Case = collections.namedtuple("Case", ["label", "kind", "data"])
random.seed(3)
drawn = [random.randint(-5, 5) for _ in range(4)]
random.shuffle(drawn)
grid = np.pad(np.arange(4.0).reshape([2, 2]), ((0, 0), (1, 0)), mode="constant")
cases = [Case(kind.lower(), kind, copy.deepcopy(drawn)) for kind in ("FLOAT32", "INT32")]


class Doubled(DataTypeConverter):
  def __init__(self, factor):
    super().__init__(name="x{0}".format(factor))
    self.factor = factor

  def TransformOperand(self, op, arg=None):
    if op.type.type == "TENSOR_FLOAT32":
      op.SetValueFromNumpy(op.GetValueAsNumpy() * self.factor)
    return op


def test(case, op, *rest, scale=1):
  x = Input("%s_%d" % (case.label, scale), ("TENSOR_" + case.kind, [2, 2]))
  y = Output("y", ("TENSOR_" + case.kind, [2, 2]))
  Model(f"{op.lower()}_{case.label}").Operation(op, x, *rest).To(y)
  data = [v * scale for v in case.data]
  double = Doubled(2).Identify([x, y])
  Example({x: data, y: [max(v, 0) for v in data]}).AddVariations(double)


for case, (scale, op) in itertools.product(cases, [(1, "RELU"), (3, "ABS")]):
  test(case, op, scale=scale)

total = Float32Scalar("total", reduce(lambda a, b: a + b, grid.flatten().tolist(), math.exp(0)))
half = Float16Scalar("half", 0.1)
lines = Float32Vector("lines", np.linspace(-1, 1, num=3).tolist())
y = Output("y", ("TENSOR_FLOAT32", [3]))
Model().Operation("FILL", lines, total, half).To(y)
Example({y: [0.1 + 0.2, 1e-46, 16777217.0]})

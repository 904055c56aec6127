"""Operands for an engine that computes with float32 tensors, and the layers whose sums it must keep exact.

A quantised operand is represented by its real values, or by integers in float32, and each operation rounds its result
to the type. Sums of products stay exact. So results follow NNAPI's definition on every processor, whatever the engine's
own quantised kernels would compute. Some engines make 8-bit kernels of roundings to 256 levels. For these a kernel
variant has such roundings around each operation, so that its result is still rounded to its own 8 bits.

| file | contents |
| --- | --- |
| `arrays.py` | the primitives of an engine with NumPy's functions |
| `constants.py` | constants that are transposed and reshaped when they are written |
| `graph.py` | the node of each operand |
| `task.py` | the task of an entry, and exact sums of integer products |

    TABLE = table_for(RealTask, "Toy", {"WHILE": "Toy has no loops"})
    graph = RealGraph(model, MyPrimitives())
"""

from nnhal.drivers.kit.operations import Node, RealPrimitives
from nnhal.drivers.kit.real.graph import RealGraph
from nnhal.drivers.kit.real.task import FAST, FORMS, RealTask

__all__ = ["FAST", "FORMS", "Node", "RealGraph", "RealPrimitives", "RealTask"]

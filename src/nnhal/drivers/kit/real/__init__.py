"""Operations for an engine that computes with float32 tensors, made of the `Primitives` that the engine has.

A quantised operand is represented by its real values, or by integers in float32, and each operation rounds its result
to the type. Sums of products stay exact. So results follow NNAPI's definition on every processor, whatever the engine's
own quantised kernels would compute. Some engines make 8-bit kernels of roundings to 256 levels. For these a kernel
variant has such roundings around each operation, so that its result is still rounded to its own 8 bits.

| file | contents |
| --- | --- |
| `constants.py` | constants that are transposed and reshaped when they are written |
| `engine.py` | `Primitives`: the primitives of an engine's graph |
| `graph.py` | the node of each operand; the task of an entry; tables of all entries |
| `elementwise.py`, `layers.py`, `shapes.py`, `recurrent.py` | the entries |

    from nnhal.drivers.kit.real import FAST, RealGraph, RealTask, table_for
"""

from nnhal.drivers.kit.real import elementwise, layers, recurrent, shapes
from nnhal.drivers.kit.real.engine import Node, Primitives
from nnhal.drivers.kit.real.graph import FAST, RealGraph, RealTask, table_for

FAMILIES = (elementwise, layers, recurrent, shapes)  # their import lists their entries

__all__ = ["FAST", "Node", "Primitives", "RealGraph", "RealTask", "table_for"]

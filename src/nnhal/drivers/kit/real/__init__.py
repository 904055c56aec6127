"""Operations by parts, for an engine that computes with float32 tensors: what the engine has is said by its `Primitives`.

A quantised operand is what it stands for, or an integer in float32, and is rounded to its type where an operation gives it;
sums of products stay exact. So results are those of NNAPI's definition on every processor, whatever the engine's own
quantised kernels would make of them. For an engine that makes such kernels of roundings to 256 levels there is a form
that has these around each operation, so that its result is still rounded to its own 8 bits.

| file | what it has |
| --- | --- |
| `constants.py` | constants that are turned and reshaped where they are written |
| `engine.py` | `Primitives`: the primitives that an engine's graph has |
| `graph.py` | which node stands for which operand; what an entry works with; tables of all entries |
| `elementwise.py`, `layers.py`, `shapes.py`, `recurrent.py` | the entries |

    from nnhal.drivers.kit.real import FAST, RealGraph, RealTask, table_for
"""

from nnhal.drivers.kit.real import elementwise, layers, recurrent, shapes
from nnhal.drivers.kit.real.engine import Node, Primitives
from nnhal.drivers.kit.real.graph import FAST, RealGraph, RealTask, table_for

FAMILIES = (elementwise, layers, recurrent, shapes)  # importing them lists their entries

__all__ = ["FAST", "Node", "Primitives", "RealGraph", "RealTask", "table_for"]

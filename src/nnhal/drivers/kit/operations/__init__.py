"""Each operation, lowered once to the primitives that engines have. A back end writes the primitives.

| file | contents |
| --- | --- |
| `primitives.py` | `Primitives`: what an engine's graph offers |
| `task.py` | the task of an entry; tables of all entries |
| `elementwise.py`, `layers.py`, `recurrent.py`, `shapes.py` | the entries |

    table = table_for(MyTask, "Toy", {"WHILE": "Toy has no loops"})  # a LoweringTable
"""

from nnhal.drivers.kit.operations import elementwise, layers, recurrent, shapes
from nnhal.drivers.kit.operations.primitives import Node, Primitives, RealPrimitives, WindowAttributes
from nnhal.drivers.kit.operations.task import ENTRIES, GraphTask, table_for

FAMILIES = (elementwise, layers, recurrent, shapes)  # their import lists their entries

__all__ = ["ENTRIES", "GraphTask", "Node", "Primitives", "RealPrimitives", "WindowAttributes", "table_for"]

"""What every driver that compiles for an engine needs, so that its author writes only what the engine does.

| file | what it has |
| --- | --- |
| `forms.py` | which of the forms of an operation runs: the fast one where it was proved, the exact one otherwise |
| `lowering.py` | a table of entries that lower operations; a whole model once for verdicts and preparation |
| `numbers.py` | windows with their padding, bounds of activations, scales of products: whatever the form of the call |
| `real/` | operations of all types, by primitives that an engine of float32 tensors has |
| `shapes.py` | models with open shapes for an engine that wants them known |
| `team.py` | instances of an engine that runs one execution at a time |

    from nnhal.drivers.kit import Refused, LoweringTable, LoweringTask, Team, for_each_shape, kept_graph, window
"""

from nnhal.drivers.kit.forms import Forms, Proved, Refused
from nnhal.drivers.kit.lowering import LoweringTable, LoweringTask, kept_graph
from nnhal.drivers.kit.numbers import Window, bounds, stored_bounds, window
from nnhal.drivers.kit.shapes import for_each_shape
from nnhal.drivers.kit.team import Member, Team
from nnhal.ops.weighted import product_scales

__all__ = [
    "Forms",
    "LoweringTable",
    "LoweringTask",
    "Member",
    "Proved",
    "Refused",
    "Team",
    "Window",
    "bounds",
    "for_each_shape",
    "kept_graph",
    "product_scales",
    "stored_bounds",
    "window",
]

"""The kit: what drivers for an engine have in common, so that an author writes only the engine's part.

| file | contents | | --- | --- | | `forms.py` | kernel variants of an operation: the fast one if it was verified, else
the reference variant | | `gated.py` | GRU: models contain its parts, engines the whole | | `lowering.py` | a table of
entries that lower operations; one pass over a model for verdicts and preparation | | `movement.py` | movement of
elements: orders of dimensions, places, parts | | `native.py` | arrays over an engine's memory; engine objects in forked
children | | `numbers.py` | windows with explicit padding, bounds of activations, scales of products | | `proof.py` | a
device that runs verified or requested kernel variants | | `onnx/` | a model as ONNX, for engines that read it | |
`quiet.py` | keeps an engine's output off stderr | | `real/` | operations of all types, through primitives of an engine
with float32 tensors | | `shapes.py` | models with open shapes, for engines that need known ones | | `sums.py` | the
size of sums of products; long sums in stages | | `team.py` | instances of an engine that runs one execution at a time |

    from nnhal.driver import LoweringTable, LoweringTask, Refused, Team, for_each_shape, kept_graph, window
"""

from typing import TYPE_CHECKING

from nnhal.base.lazily import exports

if TYPE_CHECKING:
    from nnhal.drivers.kit.forms import Forms, Refused
    from nnhal.drivers.kit.lowering import LoweringTable, LoweringTask, kept_graph
    from nnhal.drivers.kit.numbers import Window, bounds, stored_bounds, window
    from nnhal.drivers.kit.proof import ProvedDevice
    from nnhal.drivers.kit.shapes import for_each_shape
    from nnhal.drivers.kit.team import Member, Team
    from nnhal.hal.choices import Proved
    from nnhal.ops.weighted import product_scales

_EXPORTS = {
    **dict.fromkeys(("Forms", "Refused"), "nnhal.drivers.kit.forms"),
    **dict.fromkeys(("LoweringTable", "LoweringTask", "kept_graph"), "nnhal.drivers.kit.lowering"),
    **dict.fromkeys(("Window", "bounds", "stored_bounds", "window"), "nnhal.drivers.kit.numbers"),
    **dict.fromkeys(("Member", "Team"), "nnhal.drivers.kit.team"),
    "Proved": "nnhal.hal.choices",
    "ProvedDevice": "nnhal.drivers.kit.proof",
    "for_each_shape": "nnhal.drivers.kit.shapes",
    "product_scales": "nnhal.ops.weighted",
}

__all__ = [
    "Forms",
    "LoweringTable",
    "LoweringTask",
    "Member",
    "Proved",
    "ProvedDevice",
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

if not TYPE_CHECKING:  # with it, a type checker would accept any name
    __getattr__ = exports(__name__, _EXPORTS)

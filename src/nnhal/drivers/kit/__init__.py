"""What every driver that compiles for an engine needs, so that its author writes only what the engine does.

| file | what it has |
| --- | --- |
| `forms.py` | which of the forms of an operation runs: the fast one where it was proved, the exact one otherwise |
| `gated.py` | GRU, which models have by parts and engines whole |
| `lowering.py` | a table of entries that lower operations; a whole model once for verdicts and preparation |
| `movement.py` | where elements go: orders of dimensions, places, parts, shares |
| `native.py` | arrays over an engine's memory; objects of an engine in forked children |
| `numbers.py` | windows with their padding, bounds of activations, scales of products: whatever the form of the call |
| `proof.py` | a device that runs what was proved on this processor, or the forms that it is told to |
| `onnx/` | a model as ONNX, for engines that take that |
| `quiet.py` | an engine's lines kept off stderr |
| `real/` | operations of all types, by primitives that an engine of float32 tensors has |
| `shapes.py` | models with open shapes for an engine that wants them known |
| `sums.py` | how great sums of products become; how long ones are made in stages |
| `team.py` | instances of an engine that runs one execution at a time |

    from nnhal.drivers.kit import Refused, LoweringTable, LoweringTask, Team, for_each_shape, kept_graph, window
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

if not TYPE_CHECKING:  # a type checker that saw it would take any name for one of these
    __getattr__ = exports(__name__, _EXPORTS)

"""Shared building blocks for drivers that compile for an engine.

| file | contents |
| --- | --- |
| `composites.py` | functions that models spell out in several operations and engines have whole |
| `dynamic.py`, `gru.py` | such functions: quantisation with a computed scale and its layers; GRU |
| `engine_log.py` | keeps an engine's log lines off stderr |
| `instance_pool.py` | instances of an engine that runs one execution at a time |
| `lowering.py` | a table of entries that lower operations; one pass over a model for verdicts and preparation |
| `movement.py` | moves of elements: orders of dimensions, positions, slices, shares |
| `native.py` | arrays over an engine's memory; its objects in forked children; Ctrl-C during its import |
| `numbers.py` | windows with their padding, bounds of activations, scales of products, for every signature |
| `onnx/` | a model as ONNX, for engines that read ONNX |
| `operations/` | each operation, lowered once to the primitives of an engine's graph |
| `proof.py` | a device that runs the kernel variants verified on this processor, or those that an option names |
| `real/` | quantised operands as float32, for engines that compute with float32 tensors |
| `shapes.py` | models with open shapes, for an engine that needs known ones |
| `sums.py` | bounds of sums of products; long sums in stages |
| `variants.py` | the choice of a kernel variant: the fast one if it was verified, the exact one otherwise |

    from nnhal.drivers.kit import Refused, LoweringTable, LoweringTask, Team, for_each_shape, kept_graph, window
"""

from typing import TYPE_CHECKING

from nnhal.base.lazy import exports

if TYPE_CHECKING:
    from nnhal.drivers.kit.instance_pool import Member, Team
    from nnhal.drivers.kit.lowering import LoweringTable, LoweringTask, kept_graph
    from nnhal.drivers.kit.numbers import Window, bounds, stored_bounds, window
    from nnhal.drivers.kit.proof import ProvedDevice
    from nnhal.drivers.kit.shapes import for_each_shape
    from nnhal.drivers.kit.variants import Forms, Refused
    from nnhal.hal.choices import Proved
    from nnhal.ops.weighted import product_scales

_EXPORTS = {
    **dict.fromkeys(("Forms", "Refused"), "nnhal.drivers.kit.variants"),
    **dict.fromkeys(("LoweringTable", "LoweringTask", "kept_graph"), "nnhal.drivers.kit.lowering"),
    **dict.fromkeys(("Window", "bounds", "stored_bounds", "window"), "nnhal.drivers.kit.numbers"),
    **dict.fromkeys(("Member", "Team"), "nnhal.drivers.kit.instance_pool"),
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

"""A model as ONNX, for drivers of engines that read ONNX models: a lowering table with all its entries.

If an engine's own kernel is wrong or slow, as some of ONNX Runtime's were found to be, the operation is written as
several.

| file | contents |
| --- | --- |
| `graph.py` | the ONNX graph under construction, and the task of an entry of the lowering table |
| `elementwise.py`, `layers.py`, `shapes.py`, `recurrent.py` | the entries |

    graph = OnnxGraph(model)
    TABLE.lower(model, partial(OnnxTask, graph))
    graph.finish()  # a Built: the bytes of an ONNX model, its ends, and the constants that stay in their memory
"""

from nnhal.drivers.kit.onnx import elementwise, layers, recurrent, shapes
from nnhal.drivers.kit.onnx.graph import TABLE, BuiltGraph, OnnxGraph, OnnxTask

FAMILIES = (elementwise, layers, recurrent, shapes)  # their import fills the table

__all__ = ["TABLE", "BuiltGraph", "OnnxGraph", "OnnxTask"]

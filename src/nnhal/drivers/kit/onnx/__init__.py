"""A model as ONNX, for drivers of engines that take ONNX models: a lowering table with all its entries.

What an engine's own kernels get wrong or do slowly is written by parts, as ONNX Runtime's were found to be.

| file | what it has |
| --- | --- |
| `graph.py` | the ONNX graph in the making, and what an entry of the lowering table works with |
| `elementwise.py`, `layers.py`, `shapes.py`, `recurrent.py` | the entries |

    graph = OnnxGraph(model)
    TABLE.lower(model, partial(OnnxTask, graph), forms)
    graph.finish()  # a Built: the bytes of an ONNX model, its ends, and the constants that stay where they lie
"""

from nnhal.drivers.kit.onnx import elementwise, layers, recurrent, shapes
from nnhal.drivers.kit.onnx.graph import TABLE, Built, OnnxGraph, OnnxTask

FAMILIES = (elementwise, layers, recurrent, shapes)  # importing them fills the table

__all__ = ["TABLE", "Built", "OnnxGraph", "OnnxTask"]

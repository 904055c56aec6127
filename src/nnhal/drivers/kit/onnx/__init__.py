"""A model as ONNX, for drivers of engines that read ONNX models: a lowering table with all its entries.

If an engine's own kernel is wrong or slow, as some of ONNX Runtime's were found to be, a primitive is written as
several nodes.

| file | contents |
| --- | --- |
| `graph.py` | the model under conversion: the tensor of each operand |
| `nodes.py` | the nodes and constants of the ONNX graph |
| `primitives.py` | the primitives of `kit.operations`, made of ONNX's operators |
| `task.py` | the task of an entry of the lowering table; the table |
| `entries.py` | entries that replace common ones |

    graph = OnnxGraph(model)
    TABLE.lower(model, partial(OnnxTask, graph))
    graph.finish()  # a Built: the bytes of an ONNX model, its ends, and the constants that stay in their memory
"""

from nnhal.drivers.kit.onnx import entries
from nnhal.drivers.kit.onnx.graph import BuiltGraph, OnnxGraph
from nnhal.drivers.kit.onnx.task import TABLE, OnnxTask

FAMILIES = (entries,)  # their import fills the table

__all__ = ["TABLE", "BuiltGraph", "OnnxGraph", "OnnxTask"]

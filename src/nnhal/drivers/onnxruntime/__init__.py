"""The ONNX Runtime device: runs models with ONNX Runtime's kernels.

| file | what lives there |
| --- | --- |
| `device.py` | the device: verdicts, options, capabilities |
| `graph.py` | the ONNX graph in the making, and what an entry of the lowering table works with |
| `elementwise.py`, `layers.py`, `shapes.py`, `recurrent.py` | the entries |
| `lowering.py` | the table with all of them |
| `kept.py` | what is kept of a compilation |
| `session.py` | sessions, their memory, executions |

ONNX Runtime is imported when the device is asked for, not when this package is.
"""

from nnhal.drivers.onnxruntime.device import device

__all__ = ["device"]

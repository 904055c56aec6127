"""The OpenVINO device: runs models with OpenVINO's CPU plugin.

| file | what lives there |
| --- | --- |
| `device.py` | the device: verdicts, options, capabilities |
| `engine.py` | the library and its settings; compiled models, executions, what is kept of them |
| `graph.py` | which node stands for which operand; what an entry works with; the table |
| `elementwise.py`, `layers.py`, `shapes.py`, `recurrent.py` | the entries of the lowering table |

OpenVINO is imported when the device is asked for, not when this package is.
"""

from nnhal.drivers.openvino.device import device

__all__ = ["device"]

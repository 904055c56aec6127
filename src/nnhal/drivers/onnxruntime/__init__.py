"""The ONNX Runtime device: runs models with ONNX Runtime's kernels.

| file | what lives there |
| --- | --- |
| `device.py` | the device: verdicts, options, capabilities |
| `kept.py` | what is kept of a compilation |
| `session.py` | sessions, their memory, executions |

Models become ONNX by `drivers/kit/onnx`. ONNX Runtime is imported when a model needs it: the device knows its version
without.
"""

from nnhal.drivers.onnxruntime.device import device

__all__ = ["device"]

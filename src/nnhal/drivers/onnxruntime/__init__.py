"""The ONNX Runtime device: runs models with ONNX Runtime's kernels.

| file | contents |
| --- | --- |
| `device.py` | the device: verdicts, options, capabilities |
| `kept.py` | the cache entry of a compilation |
| `session.py` | sessions, their memory, executions |

`drivers/kit/onnx` converts models to ONNX. ONNX Runtime is imported when the first model needs it; the device finds its
version without an import.
"""

from nnhal.drivers.onnxruntime.device import device

__all__ = ["device"]

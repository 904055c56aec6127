"""The OpenVINO device: runs models with OpenVINO's CPU plugin.

| file | contents |
| --- | --- |
| `apart.py` | copies that keep the engine from reading unwritten memory |
| `device.py` | the device: verdicts, options, capabilities |
| `engine.py` | the library and its settings; compiled models, executions, cache entries |
| `workarounds.py` | reshapes that keep the engine from a crash behind fused matrix products, and from lost dimensions |
| `maths.py` | the primitives that `kit.real` needs, made of OpenVINO's operations |

OpenVINO is imported when the first model needs it; the device finds its version without an import.
"""

from nnhal.drivers.openvino.device import device

__all__ = ["device"]

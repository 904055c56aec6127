"""The OpenVINO device: runs models with OpenVINO's CPU plugin.

| file | what lives there |
| --- | --- |
| `apart.py` | copies where the engine would read memory that nobody wrote |
| `device.py` | the device: verdicts, options, capabilities |
| `engine.py` | the library and its settings; compiled models, executions, what is kept of them |
| `maths.py` | its operations as the primitives that `kit.real` makes NNAPI's of |

OpenVINO is imported when a model needs it: the device knows its version without.
"""

from nnhal.drivers.openvino.device import device

__all__ = ["device"]

"""The LiteRT device: runs models with LiteRT's kernels and XNNPACK on the CPU.

| file | contents |
| --- | --- |
| `device.py` | the device: verdicts, options, capabilities |
| `lowering.py` | from a bound model to TFLite, operation by operation |
| `elementwise.py`, `layers.py`, `shapes.py`, `reductions.py`, `recurrent.py` | the entries of the lowering table |
| `task.py`, `common.py` | the task of an entry, and shared functions |
| `sums.py` | the capacity of LiteRT's 32-bit sums of products |
| `graph.py` | the tensor of each operand |
| `flatbuffer.py`, `blocks.py`, `content.py` | the TFLite model, written in memory; weights that stay in place |
| `own_kernels.py` | whether LiteRT's own kernels round here as the reference's integers do |
| `greeting.py` | keeps the line off stderr that LiteRT writes there |
| `engine.py` | interpreters, their memory, executions |

LiteRT is imported when the first model needs it; the device finds its version without an import.
"""

from nnhal.drivers.litert.device import device

__all__ = ["device"]

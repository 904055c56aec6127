"""The LiteRT device: runs models with LiteRT's kernels and XNNPACK on the CPU.

| file | what lives there |
| --- | --- |
| `device.py` | the device: verdicts, options, capabilities |
| `lowering.py` | from a bound model to TFLite, operation by operation |
| `elementwise.py`, `layers.py`, `shapes.py`, `reductions.py`, `recurrent.py` | the entries of the lowering table |
| `task.py`, `common.py` | what an entry works with |
| `sums.py` | what LiteRT's 32-bit sums of products hold |
| `graph.py` | which tensor stands for which operand |
| `flatbuffer.py`, `blocks.py`, `content.py` | the TFLite model, written in memory; weights that stay where they lie |
| `own_kernels.py` | whether LiteRT's own kernels round here as the reference's integers do |
| `greeting.py` | the line that LiteRT writes to stderr, kept off it |
| `engine.py` | interpreters, their memory, executions |

LiteRT is imported when a model needs it: the device knows its version without.
"""

from nnhal.drivers.litert.device import device

__all__ = ["device"]

"""Everything that a driver imports.

    from nnhal.driver import Capabilities, Device, OperationType, Prepared, Verdict

| for | names |
| --- | --- |
| the driver | `Device`, `Prepared`, `Verdict`, `each_operation`, `Considered`, `OperationGroup`, `Hints`, `Capabilities` |
| an execution | `Request`, `Control`, `Timing`, `Argument` |
| a model | `Model`, `Operation`, `Operand`, `CONSTANTS`, `validate`, `Bound`, `ACTIVATION_RANGE`, `F32`, ... |
| buffers, bursts, fences | `Buffer`, `HostBuffer`, `Burst`, `BurstExecutor`, `Fence`, `FencedExecution`, `MemoryUse` |
| the compilation cache | `CacheContent`, `CacheFiles`, `Later`, `blobs_of` |
| the methods of NN HAL 1.0 to 1.2 | `OldCapabilities`, `DeviceStatus`, `ErrorStatus` |
| the reference device, for what an engine lacks | `Reference`, `Interpreter` |
| an engine (the kit) | `LoweringTable`, `LoweringTask`, `Team`, `for_each_shape`, `window`, ... |
| errors that a driver raises | `InvalidArgument`, `OperationFailed`, `DeviceUnavailable`, ... |

The kit and the reference are imported at the first use of one of their names.
These names are public and stay; other modules may change.
"""

from typing import TYPE_CHECKING

from nnhal.base.codes import (
    Activation,
    DeviceStatus,
    DeviceType,
    ErrorStatus,
    Lifetime,
    OperandType,
    OperationType,
    Padding,
    Preference,
    Priority,
)
from nnhal.base.cores import usable_cores
from nnhal.base.errors import (
    BadState,
    Cancelled,
    Closed,
    ContractBroken,
    DeviceUnavailable,
    DriverFailed,
    InvalidArgument,
    InvalidModel,
    InvalidRequest,
    LoopTimeout,
    MissedDeadline,
    NnhalError,
    OperationFailed,
    OutOfMemory,
    OutputInsufficientSize,
    ResourceExhausted,
    Unmappable,
    UnsupportedModel,
)
from nnhal.base.lazy import exports
from nnhal.base.levels import V1_0, V1_1, V1_2, V1_3, Level
from nnhal.base.memory import Memory
from nnhal.base.operands import Array, UnknownValue, dtype_of
from nnhal.hal.background import FencedExecution
from nnhal.hal.blobcache import blobs_of
from nnhal.hal.burst import Burst, BurstExecutor
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import (
    YES,
    Capabilities,
    Considered,
    Device,
    Hints,
    OperationGroup,
    Performance,
    Prepared,
    Verdict,
    each_operation,
)
from nnhal.hal.fence import Fence
from nnhal.hal.host import HostBuffer
from nnhal.hal.late_cache import Later
from nnhal.hal.memory import Buffer, BufferDesc, BufferRole, MemoryUse
from nnhal.hal.request import Argument, Control, Request, Timing
from nnhal.hal.utilities import OldCapabilities
from nnhal.model.graph import CONSTANTS, Model, Operand, Operation, Subgraph
from nnhal.model.validate import validate
from nnhal.ops.common import ACTIVATION_RANGE, broadcast, decode, encode, out_size, padding
from nnhal.ops.schema import B8, F16, F32, I32, Q8, Q8PC, Q8S, Q8SYMM, Q16S, Bound

if TYPE_CHECKING:
    from nnhal.drivers.kit import (
        Forms,
        LoweringTable,
        LoweringTask,
        Member,
        Proved,
        ProvedDevice,
        Refused,
        Team,
        Window,
        bounds,
        for_each_shape,
        kept_graph,
        product_scales,
        stored_bounds,
        window,
    )
    from nnhal.drivers.reference import Interpreter, Reference

_LATER = {
    "Interpreter": "nnhal.drivers.reference",
    "Reference": "nnhal.drivers.reference",
    **dict.fromkeys(
        (
            "Forms",
            "LoweringTable",
            "LoweringTask",
            "Member",
            "Proved",
            "ProvedDevice",
            "Refused",
            "Team",
            "Window",
            "bounds",
            "for_each_shape",
            "kept_graph",
            "product_scales",
            "stored_bounds",
            "window",
        ),
        "nnhal.drivers.kit",
    ),
}

__all__ = [
    "ACTIVATION_RANGE",
    "B8",
    "CONSTANTS",
    "F16",
    "F32",
    "I32",
    "Q8",
    "Q8PC",
    "Q8S",
    "Q8SYMM",
    "Q16S",
    "V1_0",
    "V1_1",
    "V1_2",
    "V1_3",
    "YES",
    "Activation",
    "Argument",
    "Array",
    "BadState",
    "Bound",
    "Buffer",
    "BufferDesc",
    "BufferRole",
    "Burst",
    "BurstExecutor",
    "CacheContent",
    "CacheFiles",
    "Cancelled",
    "Capabilities",
    "Closed",
    "Considered",
    "ContractBroken",
    "Control",
    "Device",
    "DeviceStatus",
    "DeviceType",
    "DeviceUnavailable",
    "DriverFailed",
    "ErrorStatus",
    "Fence",
    "FencedExecution",
    "Forms",
    "Hints",
    "HostBuffer",
    "Interpreter",
    "InvalidArgument",
    "InvalidModel",
    "InvalidRequest",
    "Later",
    "Level",
    "Lifetime",
    "LoopTimeout",
    "LoweringTable",
    "LoweringTask",
    "Member",
    "Memory",
    "MemoryUse",
    "MissedDeadline",
    "Model",
    "NnhalError",
    "OldCapabilities",
    "Operand",
    "OperandType",
    "Operation",
    "OperationFailed",
    "OperationGroup",
    "OperationType",
    "OutOfMemory",
    "OutputInsufficientSize",
    "Padding",
    "Performance",
    "Preference",
    "Prepared",
    "Priority",
    "Proved",
    "ProvedDevice",
    "Reference",
    "Refused",
    "Request",
    "ResourceExhausted",
    "Subgraph",
    "Team",
    "Timing",
    "UnknownValue",
    "Unmappable",
    "UnsupportedModel",
    "Verdict",
    "Window",
    "blobs_of",
    "bounds",
    "broadcast",
    "checked_prepared",
    "decode",
    "dtype_of",
    "each_operation",
    "encode",
    "for_each_shape",
    "kept_graph",
    "out_size",
    "padding",
    "product_scales",
    "stored_bounds",
    "usable_cores",
    "validate",
    "window",
]

if not TYPE_CHECKING:  # a type checker that saw it would take any name for one of these
    __getattr__ = exports(__name__, _LATER)


def __dir__() -> list[str]:
    return __all__

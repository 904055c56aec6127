"""nnhal: the Neural Networks API (NNAPI runtime and NN HAL) for Linux hosts.

    model = nnhal.load("model.tflite")
    compiled = nnhal.compile(model)
    y = compiled(x)

Importing this package imports neither an engine nor a file format: the first call that needs one imports it.
"""

from typing import TYPE_CHECKING

from nnhal.base.lazy import exports
from nnhal.base.version import __version__

_EXPORTS = {
    "load": "nnhal.api",
    "compile": "nnhal.api",
    "devices": "nnhal.api",
    "load_driver": "nnhal.runtime.discovery",
    "load_extension": "nnhal.runtime.discovery",
    "register_custom_operator": "nnhal.base.custom_operators",
    "capture": "nnhal.runtime.capturing.session",
    "Capture": "nnhal.runtime.capturing.session",
    "trace": "nnhal.runtime.tracing.session",
    "Trace": "nnhal.runtime.tracing.session",
    "allocate": "nnhal.runtime.allocate",
    "Allocation": "nnhal.runtime.allocation",
    "level_of": "nnhal.model.validate",
    "validate": "nnhal.model.validate",
    "Builder": "nnhal.frontends.python",
    "Tensor": "nnhal.frontends.tensor",
    "Compiled": "nnhal.runtime.compiled",
    "CompiledByShape": "nnhal.runtime.by_shape",
    "Execution": "nnhal.runtime.inflight",
    "Stream": "nnhal.runtime.stream",
    "CompiledBurst": "nnhal.runtime.bursts",
    "Fenced": "nnhal.runtime.fenced",
    "Binding": "nnhal.runtime.binding",
    "Report": "nnhal.runtime.job",
    "Placement": "nnhal.runtime.placement",
    "Rule": "nnhal.runtime.strategies",
    "Fence": "nnhal.hal.fence",
    "fence_pair": "nnhal.hal.fence",
    "Memory": "nnhal.base.memory",
    "Model": "nnhal.model.graph",
    "OpenModel": "nnhal.model.open",
    "ChannelQuant": "nnhal.base.operands",
    "Level": "nnhal.base.levels",
    "Preference": "nnhal.base.codes",
    "Priority": "nnhal.base.codes",
    "ErrorStatus": "nnhal.base.codes",
    "FallbackWarning": "nnhal.runtime.compilation",
    **dict.fromkeys(
        (
            "BadFile",
            "BadState",
            "Cancelled",
            "Closed",
            "ContractBroken",
            "DeadObject",
            "DeviceUnavailable",
            "DriverFailed",
            "InvalidArgument",
            "InvalidModel",
            "InvalidRequest",
            "LoopTimeout",
            "MissedDeadline",
            "NnhalError",
            "OperationFailed",
            "OutOfMemory",
            "OutputInsufficientSize",
            "ResourceExhausted",
            "ShapeNeeded",
            "Unmappable",
            "UnsupportedModel",
        ),
        "nnhal.base.errors",
    ),
}

if TYPE_CHECKING:
    from nnhal.api import compile, devices, load
    from nnhal.base.codes import ErrorStatus, Preference, Priority
    from nnhal.base.custom_operators import register_custom_operator
    from nnhal.base.errors import (
        BadFile,
        BadState,
        Cancelled,
        Closed,
        ContractBroken,
        DeadObject,
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
        ShapeNeeded,
        Unmappable,
        UnsupportedModel,
    )
    from nnhal.base.levels import Level
    from nnhal.base.memory import Memory
    from nnhal.base.operands import ChannelQuant
    from nnhal.frontends.python import Builder
    from nnhal.frontends.tensor import Tensor
    from nnhal.hal.fence import Fence, fence_pair
    from nnhal.model.graph import Model
    from nnhal.model.open import OpenModel
    from nnhal.model.validate import level_of, validate
    from nnhal.runtime.allocate import allocate
    from nnhal.runtime.allocation import Allocation
    from nnhal.runtime.binding import Binding
    from nnhal.runtime.bursts import CompiledBurst
    from nnhal.runtime.by_shape import CompiledByShape
    from nnhal.runtime.capturing.session import Capture, capture
    from nnhal.runtime.compilation import FallbackWarning
    from nnhal.runtime.compiled import Compiled
    from nnhal.runtime.discovery import load_driver, load_extension
    from nnhal.runtime.fenced import Fenced
    from nnhal.runtime.inflight import Execution
    from nnhal.runtime.job import Report
    from nnhal.runtime.placement import Placement
    from nnhal.runtime.strategies import Rule
    from nnhal.runtime.stream import Stream
    from nnhal.runtime.tracing.session import Trace, trace

__all__ = [  # for type checkers, which do not see the lazy exports
    "Allocation",
    "BadFile",
    "BadState",
    "Binding",
    "Builder",
    "Cancelled",
    "Capture",
    "ChannelQuant",
    "Closed",
    "Compiled",
    "CompiledBurst",
    "CompiledByShape",
    "ContractBroken",
    "DeadObject",
    "DeviceUnavailable",
    "DriverFailed",
    "ErrorStatus",
    "Execution",
    "FallbackWarning",
    "Fence",
    "Fenced",
    "InvalidArgument",
    "InvalidModel",
    "InvalidRequest",
    "Level",
    "LoopTimeout",
    "Memory",
    "MissedDeadline",
    "Model",
    "NnhalError",
    "OpenModel",
    "OperationFailed",
    "OutOfMemory",
    "OutputInsufficientSize",
    "Placement",
    "Preference",
    "Priority",
    "Report",
    "ResourceExhausted",
    "Rule",
    "ShapeNeeded",
    "Stream",
    "Tensor",
    "Trace",
    "Unmappable",
    "UnsupportedModel",
    "allocate",
    "capture",
    "compile",
    "devices",
    "fence_pair",
    "level_of",
    "load",
    "load_driver",
    "load_extension",
    "register_custom_operator",
    "trace",
    "validate",
]

if not TYPE_CHECKING:  # with it, a type checker would accept any name
    __getattr__ = exports(__name__, _EXPORTS)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]

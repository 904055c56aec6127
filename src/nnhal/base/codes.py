"""The numeric codes of NNAPI: operand and operation types, statuses, lifetimes, enums of arguments.

Source of the numbers: the NN HAL `types.hal` of 1.0 to 1.3, the AIDL interface for later ones, and the NDK header.
"""

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from nnhal.base.levels import FL6, FL7, V1_0, V1_1, V1_2, V1_3, Level

EXTENSION_SHIFT = 16  # an extension type is (prefix << 16) | type within the extension
MAX_COPIED_CONSTANT = 128  # bytes; larger constants live in pools
MAX_RANK = 8
LIMIT_RANK = 32  # of any operand; below feature level 7, operations support no more than MAX_RANK
LOOP_TIMEOUT_DEFAULT_NS = 2_000_000_000
LOOP_TIMEOUT_MAXIMUM_NS = 15_000_000_000
MAX_OPERAND_BYTES = 4_294_967_295


class OperandType(IntEnum):
    """The type of an operand. Scalars have no dimensions; TENSOR_ types have any rank."""

    FLOAT32 = 0
    INT32 = 1
    UINT32 = 2
    TENSOR_FLOAT32 = 3
    TENSOR_INT32 = 4
    TENSOR_QUANT8_ASYMM = 5
    BOOL = 6
    TENSOR_QUANT16_SYMM = 7
    TENSOR_FLOAT16 = 8
    TENSOR_BOOL8 = 9
    FLOAT16 = 10
    TENSOR_QUANT8_SYMM_PER_CHANNEL = 11
    TENSOR_QUANT16_ASYMM = 12
    TENSOR_QUANT8_SYMM = 13
    TENSOR_QUANT8_ASYMM_SIGNED = 14
    SUBGRAPH = 15
    OEM = 10000
    TENSOR_OEM_BYTE = 10001


class _TypeFacts(NamedTuple):
    dtype: np.dtype[np.generic] | None  # None: only the extension or OEM knows the element size
    tensor: bool
    since: Level
    zero_points: tuple[int, int] | None  # None: not quantised


def type_facts(dtype: str | None, tensor: bool, since: Level, zero_points: tuple[int, int] | None = None) -> _TypeFacts:
    """Return the facts about an operand type; dtype is numpy's name of the element type."""
    return _TypeFacts(np.dtype(dtype) if dtype else None, tensor, since, zero_points)


_T = OperandType
TYPE_FACTS: dict[int, _TypeFacts] = {
    _T.FLOAT32: type_facts("<f4", False, V1_0),
    _T.INT32: type_facts("<i4", False, V1_0),
    _T.UINT32: type_facts("<u4", False, V1_0),
    _T.TENSOR_FLOAT32: type_facts("<f4", True, V1_0),
    _T.TENSOR_INT32: type_facts("<i4", True, V1_0),
    _T.TENSOR_QUANT8_ASYMM: type_facts("u1", True, V1_0, (0, 255)),
    _T.BOOL: type_facts("?", False, V1_2),
    _T.TENSOR_QUANT16_SYMM: type_facts("<i2", True, V1_2, (0, 0)),
    _T.TENSOR_FLOAT16: type_facts("<f2", True, V1_2),
    _T.TENSOR_BOOL8: type_facts("?", True, V1_2),
    _T.FLOAT16: type_facts("<f2", False, V1_2),
    _T.TENSOR_QUANT8_SYMM_PER_CHANNEL: type_facts("i1", True, V1_2, (0, 0)),
    _T.TENSOR_QUANT16_ASYMM: type_facts("<u2", True, V1_2, (0, 65535)),
    _T.TENSOR_QUANT8_SYMM: type_facts("i1", True, V1_2, (0, 0)),
    _T.TENSOR_QUANT8_ASYMM_SIGNED: type_facts("i1", True, V1_3, (-128, 127)),
    _T.SUBGRAPH: type_facts(None, False, V1_3),
    _T.OEM: type_facts(None, False, V1_0),
    _T.TENSOR_OEM_BYTE: type_facts("u1", True, V1_0),
}


FOREIGN_TYPES: dict[int, str] = {}  # names of the types and operations of registered extensions
FOREIGN_OPERATIONS: dict[int, str] = {}
_TYPE_NAMES = {int(t): t.name for t in OperandType}


def type_name(code: int) -> str:
    """Return the name of an operand type, also of extension types and of invalid codes.

    Args:
        code: The code.
    """
    return _TYPE_NAMES.get(code) or FOREIGN_TYPES.get(code) or _foreign("operand type", code)


def operation_name(code: int) -> str:
    """Return the name of an operation type, also of extension types and of invalid codes.

    Args:
        code: The code.
    """
    return _OPERATION_NAMES.get(code) or FOREIGN_OPERATIONS.get(code) or _foreign("operation", code)


def operation_names() -> list[str]:
    """Return the names of all operation types, including registered extensions."""
    return [*_OPERATION_NAMES.values(), *FOREIGN_OPERATIONS.values()]


def type_names() -> list[str]:
    """Return the names of all operand types, including registered extensions."""
    return [*_TYPE_NAMES.values(), *FOREIGN_TYPES.values()]


def _foreign(kind: str, code: int) -> str:
    prefix, within = code >> EXTENSION_SHIFT, code & ((1 << EXTENSION_SHIFT) - 1)
    return f"extension {kind} {prefix}:{within}" if prefix else f"unknown {kind} {code}"


class OperationType(IntEnum):
    """The operations, in the order of their codes."""

    ADD = 0
    AVERAGE_POOL_2D = 1
    CONCATENATION = 2
    CONV_2D = 3
    DEPTHWISE_CONV_2D = 4
    DEPTH_TO_SPACE = 5
    DEQUANTIZE = 6
    EMBEDDING_LOOKUP = 7
    FLOOR = 8
    FULLY_CONNECTED = 9
    HASHTABLE_LOOKUP = 10
    L2_NORMALIZATION = 11
    L2_POOL_2D = 12
    LOCAL_RESPONSE_NORMALIZATION = 13
    LOGISTIC = 14
    LSH_PROJECTION = 15
    LSTM = 16
    MAX_POOL_2D = 17
    MUL = 18
    RELU = 19
    RELU1 = 20
    RELU6 = 21
    RESHAPE = 22
    RESIZE_BILINEAR = 23
    RNN = 24
    SOFTMAX = 25
    SPACE_TO_DEPTH = 26
    SVDF = 27
    TANH = 28
    BATCH_TO_SPACE_ND = 29
    DIV = 30
    MEAN = 31
    PAD = 32
    SPACE_TO_BATCH_ND = 33
    SQUEEZE = 34
    STRIDED_SLICE = 35
    SUB = 36
    TRANSPOSE = 37
    ABS = 38
    ARGMAX = 39
    ARGMIN = 40
    AXIS_ALIGNED_BBOX_TRANSFORM = 41
    BIDIRECTIONAL_SEQUENCE_LSTM = 42
    BIDIRECTIONAL_SEQUENCE_RNN = 43
    BOX_WITH_NMS_LIMIT = 44
    CAST = 45
    CHANNEL_SHUFFLE = 46
    DETECTION_POSTPROCESSING = 47
    EQUAL = 48
    EXP = 49
    EXPAND_DIMS = 50
    GATHER = 51
    GENERATE_PROPOSALS = 52
    GREATER = 53
    GREATER_EQUAL = 54
    GROUPED_CONV_2D = 55
    HEATMAP_MAX_KEYPOINT = 56
    INSTANCE_NORMALIZATION = 57
    LESS = 58
    LESS_EQUAL = 59
    LOG = 60
    LOGICAL_AND = 61
    LOGICAL_NOT = 62
    LOGICAL_OR = 63
    LOG_SOFTMAX = 64
    MAXIMUM = 65
    MINIMUM = 66
    NEG = 67
    NOT_EQUAL = 68
    PAD_V2 = 69
    POW = 70
    PRELU = 71
    QUANTIZE = 72
    QUANTIZED_16BIT_LSTM = 73
    RANDOM_MULTINOMIAL = 74
    REDUCE_ALL = 75
    REDUCE_ANY = 76
    REDUCE_MAX = 77
    REDUCE_MIN = 78
    REDUCE_PROD = 79
    REDUCE_SUM = 80
    ROI_ALIGN = 81
    ROI_POOLING = 82
    RSQRT = 83
    SELECT = 84
    SIN = 85
    SLICE = 86
    SPLIT = 87
    SQRT = 88
    TILE = 89
    TOPK_V2 = 90
    TRANSPOSE_CONV_2D = 91
    UNIDIRECTIONAL_SEQUENCE_LSTM = 92
    UNIDIRECTIONAL_SEQUENCE_RNN = 93
    RESIZE_NEAREST_NEIGHBOR = 94
    QUANTIZED_LSTM = 95
    IF = 96
    WHILE = 97
    ELU = 98
    HARD_SWISH = 99
    FILL = 100
    RANK = 101
    BATCH_MATMUL = 102
    PACK = 103
    MIRROR_PAD = 104
    REVERSE = 105
    OEM_OPERATION = 10000

    @property
    def since(self) -> Level:
        """The first HAL version or feature level that has this operation."""
        for first, level in _OPERATIONS_SINCE:
            if self >= first:
                return level
        return V1_0


_OPERATION_NAMES = {int(o): o.name for o in OperationType}


_OPERATIONS_SINCE = (
    (OperationType.OEM_OPERATION, V1_0),
    (OperationType.MIRROR_PAD, FL7),
    (OperationType.BATCH_MATMUL, FL6),
    (OperationType.QUANTIZED_LSTM, V1_3),
    (OperationType.ABS, V1_2),
    (OperationType.BATCH_TO_SPACE_ND, V1_1),
)


class Lifetime(IntEnum):
    """The source of an operand's value."""

    TEMPORARY_VARIABLE = 0
    SUBGRAPH_INPUT = 1
    SUBGRAPH_OUTPUT = 2
    CONSTANT_COPY = 3
    CONSTANT_REFERENCE = 4
    NO_VALUE = 5
    SUBGRAPH = 6


class ErrorStatus(IntEnum):
    """The outcome of a HAL call."""

    NONE = 0
    DEVICE_UNAVAILABLE = 1
    GENERAL_FAILURE = 2
    OUTPUT_INSUFFICIENT_SIZE = 3
    INVALID_ARGUMENT = 4
    MISSED_DEADLINE_TRANSIENT = 5
    MISSED_DEADLINE_PERSISTENT = 6
    RESOURCE_EXHAUSTED_TRANSIENT = 7
    RESOURCE_EXHAUSTED_PERSISTENT = 8
    DEAD_OBJECT = 10000


class ResultCode(IntEnum):
    """The outcome of an NDK call."""

    NO_ERROR = 0
    OUT_OF_MEMORY = 1
    INCOMPLETE = 2
    UNEXPECTED_NULL = 3
    BAD_DATA = 4
    OP_FAILED = 5
    BAD_STATE = 6
    UNMAPPABLE = 7
    OUTPUT_INSUFFICIENT_SIZE = 8
    UNAVAILABLE_DEVICE = 9
    MISSED_DEADLINE_TRANSIENT = 10
    MISSED_DEADLINE_PERSISTENT = 11
    RESOURCE_EXHAUSTED_TRANSIENT = 12
    RESOURCE_EXHAUSTED_PERSISTENT = 13
    DEAD_OBJECT = 14


class DeviceStatus(IntEnum):
    """Whether a device is available."""

    AVAILABLE = 0
    BUSY = 1
    OFFLINE = 2
    UNKNOWN = 3


class DeviceType(IntEnum):
    """The kind of a device."""

    OTHER = 1
    CPU = 2
    GPU = 3
    ACCELERATOR = 4


class Preference(IntEnum):
    """The optimisation goal of a compilation."""

    LOW_POWER = 0
    FAST_SINGLE_ANSWER = 1
    SUSTAINED_SPEED = 2


class Priority(IntEnum):
    """The relative priority among one client's prepared models on one device."""

    LOW = 0
    MEDIUM = 1
    HIGH = 2


class Activation(IntEnum):
    """An activation fused into an operation."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3


class RecurrentActivation(IntEnum):
    """An activation of the recurrent operations."""

    NONE = 0
    RELU = 1
    RELU1 = 2
    RELU6 = 3
    TANH = 4
    SIGN_BIT = 5
    SIGMOID = 6


class Padding(IntEnum):
    """An implicit padding scheme."""

    SAME = 1
    VALID = 2


class LshProjection(IntEnum):
    """The output type of LSH_PROJECTION."""

    SPARSE_DEPRECATED = 1
    DENSE = 2
    SPARSE = 3


class MirrorPad(IntEnum):
    """The mode of MIRROR_PAD: whether the edge element is repeated."""

    REFLECT = 0
    SYMMETRIC = 1

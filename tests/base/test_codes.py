"""The numbers of NNAPI, as `types.hal` of NN HAL 1.0 to 1.3 and the NDK's NeuralNetworksTypes.h have them."""

from enum import IntEnum

import numpy as np
import pytest

from nnhal.base import codes
from nnhal.base.codes import TYPE_FACTS, OperandType, OperationType, operation_name, type_name
from nnhal.base.levels import FL5, FL6, FL7, FL8, V1_0, V1_1, V1_2, V1_3, Level

# In the order of their codes, from 0, a line for each level that brought some.
OPERATIONS = {
    V1_0: """ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
        FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION
        LSTM MAX_POOL_2D MUL RELU RELU1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH""",
    V1_1: "BATCH_TO_SPACE_ND DIV MEAN PAD SPACE_TO_BATCH_ND SQUEEZE STRIDED_SLICE SUB TRANSPOSE",
    V1_2: """ABS ARGMAX ARGMIN AXIS_ALIGNED_BBOX_TRANSFORM BIDIRECTIONAL_SEQUENCE_LSTM BIDIRECTIONAL_SEQUENCE_RNN
        BOX_WITH_NMS_LIMIT CAST CHANNEL_SHUFFLE DETECTION_POSTPROCESSING EQUAL EXP EXPAND_DIMS GATHER GENERATE_PROPOSALS
        GREATER GREATER_EQUAL GROUPED_CONV_2D HEATMAP_MAX_KEYPOINT INSTANCE_NORMALIZATION LESS LESS_EQUAL LOG LOGICAL_AND
        LOGICAL_NOT LOGICAL_OR LOG_SOFTMAX MAXIMUM MINIMUM NEG NOT_EQUAL PAD_V2 POW PRELU QUANTIZE QUANTIZED_16BIT_LSTM
        RANDOM_MULTINOMIAL REDUCE_ALL REDUCE_ANY REDUCE_MAX REDUCE_MIN REDUCE_PROD REDUCE_SUM ROI_ALIGN ROI_POOLING RSQRT
        SELECT SIN SLICE SPLIT SQRT TILE TOPK_V2 TRANSPOSE_CONV_2D UNIDIRECTIONAL_SEQUENCE_LSTM
        UNIDIRECTIONAL_SEQUENCE_RNN RESIZE_NEAREST_NEIGHBOR""",
    V1_3: "QUANTIZED_LSTM IF WHILE ELU HARD_SWISH FILL RANK",
    FL6: "BATCH_MATMUL PACK",
    FL7: "MIRROR_PAD REVERSE",
}
# In the order of their codes: the element's type, whether it is a tensor, its first level, its zero points.
OPERANDS = {
    "FLOAT32": ("float32", False, V1_0, None),
    "INT32": ("int32", False, V1_0, None),
    "UINT32": ("uint32", False, V1_0, None),
    "TENSOR_FLOAT32": ("float32", True, V1_0, None),
    "TENSOR_INT32": ("int32", True, V1_0, None),
    "TENSOR_QUANT8_ASYMM": ("uint8", True, V1_0, (0, 255)),
    "BOOL": ("bool", False, V1_2, None),
    "TENSOR_QUANT16_SYMM": ("int16", True, V1_2, (0, 0)),
    "TENSOR_FLOAT16": ("float16", True, V1_2, None),
    "TENSOR_BOOL8": ("bool", True, V1_2, None),
    "FLOAT16": ("float16", False, V1_2, None),
    "TENSOR_QUANT8_SYMM_PER_CHANNEL": ("int8", True, V1_2, (0, 0)),
    "TENSOR_QUANT16_ASYMM": ("uint16", True, V1_2, (0, 65535)),
    "TENSOR_QUANT8_SYMM": ("int8", True, V1_2, (0, 0)),
    "TENSOR_QUANT8_ASYMM_SIGNED": ("int8", True, V1_3, (-128, 127)),
    "SUBGRAPH": (None, False, V1_3, None),
}
OTHERS = {
    "Lifetime": "0 TEMPORARY_VARIABLE SUBGRAPH_INPUT SUBGRAPH_OUTPUT CONSTANT_COPY CONSTANT_REFERENCE NO_VALUE SUBGRAPH",
    "ErrorStatus": "0 NONE DEVICE_UNAVAILABLE GENERAL_FAILURE OUTPUT_INSUFFICIENT_SIZE INVALID_ARGUMENT "
    "MISSED_DEADLINE_TRANSIENT MISSED_DEADLINE_PERSISTENT RESOURCE_EXHAUSTED_TRANSIENT RESOURCE_EXHAUSTED_PERSISTENT "
    "10000 DEAD_OBJECT",
    "ResultCode": "0 NO_ERROR OUT_OF_MEMORY INCOMPLETE UNEXPECTED_NULL BAD_DATA OP_FAILED BAD_STATE UNMAPPABLE "
    "OUTPUT_INSUFFICIENT_SIZE UNAVAILABLE_DEVICE MISSED_DEADLINE_TRANSIENT MISSED_DEADLINE_PERSISTENT "
    "RESOURCE_EXHAUSTED_TRANSIENT RESOURCE_EXHAUSTED_PERSISTENT DEAD_OBJECT",
    "DeviceStatus": "0 AVAILABLE BUSY OFFLINE UNKNOWN",
    "DeviceType": "1 OTHER CPU GPU ACCELERATOR",
    "Preference": "0 LOW_POWER FAST_SINGLE_ANSWER SUSTAINED_SPEED",
    "Priority": "0 LOW MEDIUM HIGH",
    "Activation": "0 NONE RELU RELU1 RELU6",
    "RecurrentActivation": "0 NONE RELU RELU1 RELU6 TANH SIGN_BIT SIGMOID",
    "Padding": "1 SAME VALID",
    "LshProjection": "1 SPARSE_DEPRECATED DENSE SPARSE",
    "MirrorPad": "0 REFLECT SYMMETRIC",
}


def test_operations_have_their_code_and_first_level() -> None:
    published = [(name, level) for level, names in OPERATIONS.items() for name in names.split()]
    assert [(o.name, int(o), o.since) for o in OperationType][:-1] == [
        (name, code, level) for code, (name, level) in enumerate(published)
    ]
    assert (OperationType.OEM_OPERATION, OperationType.OEM_OPERATION.since) == (10000, V1_0)
    assert [operation_name(code) for code in (0, 105, 10000)] == ["ADD", "REVERSE", "OEM_OPERATION"]


def test_types_of_operands_have_their_code_and_facts() -> None:
    for code, (name, (element, *facts)) in enumerate(OPERANDS.items()):
        known = TYPE_FACTS[code]
        assert OperandType[name] == code and type_name(code) == name
        assert known.dtype == (None if element is None else np.dtype(element))
        assert list(known[1:]) == facts
    assert [(t.name, int(t), *TYPE_FACTS[t]) for t in list(OperandType)[len(OPERANDS) :]] == [
        ("OEM", 10000, None, False, V1_0, None),
        ("TENSOR_OEM_BYTE", 10001, np.dtype("uint8"), True, V1_0, None),
    ]


@pytest.mark.parametrize("name", OTHERS)
def test_other_enums_have_their_codes(name: str) -> None:
    code, published = 0, {}
    for word in OTHERS[name].split():
        if word.isdigit():
            code = int(word)
        else:
            published[word], code = code, code + 1
    kind: type[IntEnum] = getattr(codes, name)
    assert {member.name: int(member) for member in kind} == published


def test_limits_are_those_of_the_interface() -> None:
    assert codes.MAX_COPIED_CONSTANT == 128
    assert (codes.LOOP_TIMEOUT_DEFAULT_NS, codes.LOOP_TIMEOUT_MAXIMUM_NS) == (2 * 10**9, 15 * 10**9)
    assert codes.EXTENSION_SHIFT == 16 and codes.MAX_OPERAND_BYTES == 2**32 - 1
    assert codes.MAX_RANK == 8 and codes.LIMIT_RANK == 32  # of nnhal's own


def test_codes_of_extensions_that_are_not_known_say_where_they_belong() -> None:
    assert operation_name(0x7000 << 16) == "extension operation 28672:0"
    assert type_name((0x7000 << 16) + 65535) == "extension operand type 28672:65535"
    assert operation_name(106) == "unknown operation 106" and operation_name(65535) == "unknown operation 65535"


def test_levels_are_the_feature_levels() -> None:
    assert list(map(int, (V1_0, V1_1, V1_2, V1_3, FL5, FL6, FL7, FL8))) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [str(level) for level in Level] == [
        "1.0",
        "1.1",
        "1.2",
        "1.3",
        *(f"feature level {n}" for n in (5, 6, 7, 8)),
    ]
    for level in Level:
        assert Level.parse(level.name) == Level.parse(level.name.lower()) == level
    for text in ("1", "2", "3", "4", "9", "", "V", "FL4"):  # a bare number is a feature level, where none of 1.x has it
        with pytest.raises(ValueError, match=r"must be one of 1\.0, 1\.1, 1\.2, 1\.3, 5, 6, 7, 8"):
            Level.parse(text)

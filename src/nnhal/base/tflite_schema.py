"""The published TFLite schema as data, for reading and writing files; see `tests/base/test_tflite_schema.py`.

Members of an enum are in the order of their numbers, from 0; tables of options have names without `Options`. A table's
fields are in the order of their numbers. Each has a `struct` format (`s` for a text, `[` for a vector), and its default
unless that is 0; `-` is a number that is no longer used.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

_OPERATORS = """
ADD AVERAGE_POOL_2D CONCATENATION CONV_2D DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE EMBEDDING_LOOKUP FLOOR
FULLY_CONNECTED HASHTABLE_LOOKUP L2_NORMALIZATION L2_POOL_2D LOCAL_RESPONSE_NORMALIZATION LOGISTIC LSH_PROJECTION LSTM
MAX_POOL_2D MUL RELU RELU_N1_TO_1 RELU6 RESHAPE RESIZE_BILINEAR RNN SOFTMAX SPACE_TO_DEPTH SVDF TANH CONCAT_EMBEDDINGS
SKIP_GRAM CALL CUSTOM EMBEDDING_LOOKUP_SPARSE PAD UNIDIRECTIONAL_SEQUENCE_RNN GATHER BATCH_TO_SPACE_ND SPACE_TO_BATCH_ND
TRANSPOSE MEAN SUB DIV SQUEEZE UNIDIRECTIONAL_SEQUENCE_LSTM STRIDED_SLICE BIDIRECTIONAL_SEQUENCE_RNN EXP TOPK_V2 SPLIT
LOG_SOFTMAX DELEGATE BIDIRECTIONAL_SEQUENCE_LSTM CAST PRELU MAXIMUM ARG_MAX MINIMUM LESS NEG PADV2 GREATER GREATER_EQUAL
LESS_EQUAL SELECT SLICE SIN TRANSPOSE_CONV SPARSE_TO_DENSE TILE EXPAND_DIMS EQUAL NOT_EQUAL LOG SUM SQRT RSQRT SHAPE POW
ARG_MIN FAKE_QUANT REDUCE_PROD REDUCE_MAX PACK LOGICAL_OR ONE_HOT LOGICAL_AND LOGICAL_NOT UNPACK REDUCE_MIN FLOOR_DIV
REDUCE_ANY SQUARE ZEROS_LIKE FILL FLOOR_MOD RANGE RESIZE_NEAREST_NEIGHBOR LEAKY_RELU SQUARED_DIFFERENCE MIRROR_PAD ABS
SPLIT_V UNIQUE CEIL REVERSE_V2 ADD_N GATHER_ND COS WHERE RANK ELU REVERSE_SEQUENCE MATRIX_DIAG QUANTIZE MATRIX_SET_DIAG
ROUND HARD_SWISH IF WHILE NON_MAX_SUPPRESSION_V4 NON_MAX_SUPPRESSION_V5 SCATTER_ND SELECT_V2 DENSIFY SEGMENT_SUM
BATCH_MATMUL PLACEHOLDER_FOR_GREATER_OP_CODES CUMSUM CALL_ONCE BROADCAST_TO RFFT2D CONV_3D IMAG REAL COMPLEX_ABS
HASHTABLE HASHTABLE_FIND HASHTABLE_IMPORT HASHTABLE_SIZE REDUCE_ALL CONV_3D_TRANSPOSE VAR_HANDLE READ_VARIABLE
ASSIGN_VARIABLE BROADCAST_ARGS RANDOM_STANDARD_NORMAL BUCKETIZE RANDOM_UNIFORM MULTINOMIAL GELU DYNAMIC_UPDATE_SLICE
RELU_0_TO_1 UNSORTED_SEGMENT_PROD UNSORTED_SEGMENT_MAX UNSORTED_SEGMENT_SUM ATAN2 UNSORTED_SEGMENT_MIN SIGN BITCAST
BITWISE_XOR RIGHT_SHIFT STABLEHLO_LOGISTIC STABLEHLO_ADD STABLEHLO_DIVIDE STABLEHLO_MULTIPLY STABLEHLO_MAXIMUM
STABLEHLO_RESHAPE STABLEHLO_CLAMP STABLEHLO_CONCATENATE STABLEHLO_BROADCAST_IN_DIM STABLEHLO_CONVOLUTION STABLEHLO_SLICE
STABLEHLO_CUSTOM_CALL STABLEHLO_REDUCE STABLEHLO_ABS STABLEHLO_AND STABLEHLO_COSINE STABLEHLO_EXPONENTIAL
STABLEHLO_FLOOR STABLEHLO_LOG STABLEHLO_MINIMUM STABLEHLO_NEGATE STABLEHLO_OR STABLEHLO_POWER STABLEHLO_REMAINDER
STABLEHLO_RSQRT STABLEHLO_SELECT STABLEHLO_SUBTRACT STABLEHLO_TANH STABLEHLO_SCATTER STABLEHLO_COMPARE STABLEHLO_CONVERT
STABLEHLO_DYNAMIC_SLICE STABLEHLO_DYNAMIC_UPDATE_SLICE STABLEHLO_PAD STABLEHLO_IOTA STABLEHLO_DOT_GENERAL
STABLEHLO_REDUCE_WINDOW STABLEHLO_SORT STABLEHLO_WHILE STABLEHLO_GATHER STABLEHLO_TRANSPOSE DILATE
STABLEHLO_RNG_BIT_GENERATOR REDUCE_WINDOW STABLEHLO_COMPOSITE STABLEHLO_SHIFT_LEFT STABLEHLO_CBRT
"""
_TYPES = """
FLOAT32 FLOAT16 INT32 UINT8 INT64 STRING BOOL INT16 COMPLEX64 INT8 FLOAT64 COMPLEX128 UINT64 RESOURCE VARIANT UINT32
UINT16 INT4 BFLOAT16 INT2 UINT4 FLOAT8_E4M3FN FLOAT8_E5M2
"""
_OPTIONS = """
NONE Conv2D DepthwiseConv2D ConcatEmbeddings LSHProjection Pool2D SVDF RNN FullyConnected Softmax Concatenation Add
L2Norm LocalResponseNormalization LSTM ResizeBilinear Call Reshape SkipGram SpaceToDepth EmbeddingLookupSparse Mul Pad
Gather BatchToSpaceND SpaceToBatchND Transpose Reducer Sub Div Squeeze SequenceRNN StridedSlice Exp TopKV2 Split
LogSoftmax Cast Dequantize MaximumMinimum ArgMax Less Neg PadV2 Greater GreaterEqual LessEqual Select Slice
TransposeConv SparseToDense Tile ExpandDims Equal NotEqual Shape Pow ArgMin FakeQuant Pack LogicalOr OneHot LogicalAnd
LogicalNot Unpack FloorDiv Square ZerosLike Fill BidirectionalSequenceLSTM BidirectionalSequenceRNN
UnidirectionalSequenceLSTM FloorMod Range ResizeNearestNeighbor LeakyRelu SquaredDifference MirrorPad Abs SplitV Unique
ReverseV2 AddN GatherNd Cos Where Rank ReverseSequence MatrixDiag Quantize MatrixSetDiag HardSwish If While DepthToSpace
NonMaxSuppressionV4 NonMaxSuppressionV5 ScatterNd SelectV2 Densify SegmentSum BatchMatMul Cumsum CallOnce BroadcastTo
Rfft2d Conv3D Hashtable HashtableFind HashtableImport HashtableSize VarHandle ReadVariable AssignVariable Random
Bucketize Gelu DynamicUpdateSlice UnsortedSegmentProd UnsortedSegmentMax UnsortedSegmentMin UnsortedSegmentSum ATan2
Sign Bitcast BitwiseXor RightShift
"""
_OPTIONS_2 = """
NONE StablehloConcatenate StablehloBroadcastInDim StablehloSlice StablehloConvolution StablehloCustomCall
StablehloReduce StablehloScatter StablehloCompare StablehloDynamicSlice StablehloPad StablehloIota StablehloDotGeneral
StablehloReduceWindow StablehloSort StablehloWhile StablehloGather StablehloTranspose Dilate StablehloRngBitGenerator
ReduceWindow StableHLOComposite StablehloShiftLeft
"""

OPERATORS = tuple(_OPERATORS.split())  # of BuiltinOperator
TYPES = tuple(_TYPES.split())  # of TensorType
OPTIONS, OPTIONS_2 = (
    tuple(name if name == "NONE" else f"{name}Options" for name in names.split()) for names in (_OPTIONS, _OPTIONS_2)
)  # of BuiltinOptions and BuiltinOptions2
_FORMS: dict[str, Callable[[str], Any]] = {"?": lambda n: n == "1", "f": float, **dict.fromkeys("bBiIqQ", int)}
_FIELDS = {
    "Conv2D": (
        "Padding:b StrideW:i StrideH:i FusedActivationFunction:b DilationWFactor:i=1 DilationHFactor:i=1 "
        "QuantizedBiasType:b"
    ),
    "DepthwiseConv2D": (
        "Padding:b StrideW:i StrideH:i DepthMultiplier:i FusedActivationFunction:b DilationWFactor:i=1 "
        "DilationHFactor:i=1"
    ),
    "ConcatEmbeddings": "NumChannels:i NumColumnsPerChannel:[i EmbeddingDimPerChannel:[i",
    "LSHProjection": "Type:b",
    "Pool2D": "Padding:b StrideW:i StrideH:i FilterWidth:i FilterHeight:i FusedActivationFunction:b",
    "SVDF": "Rank:i FusedActivationFunction:b AsymmetricQuantizeInputs:?",
    "RNN": "FusedActivationFunction:b AsymmetricQuantizeInputs:?",
    "FullyConnected": (
        "FusedActivationFunction:b WeightsFormat:b KeepNumDims:? AsymmetricQuantizeInputs:? QuantizedBiasType:b"
    ),
    "Softmax": "Beta:f",
    "Concatenation": "Axis:i FusedActivationFunction:b",
    "Add": "FusedActivationFunction:b PotScaleInt16:?=1",
    "L2Norm": "FusedActivationFunction:b",
    "LocalResponseNormalization": "Radius:i Bias:f Alpha:f Beta:f",
    "LSTM": "FusedActivationFunction:b CellClip:f ProjClip:f KernelType:b AsymmetricQuantizeInputs:?",
    "ResizeBilinear": "- - AlignCorners:? HalfPixelCenters:?",
    "Call": "Subgraph:I",
    "Reshape": "NewShape:[i",
    "SkipGram": "NgramSize:i MaxSkipSize:i IncludeAllNgrams:?",
    "SpaceToDepth": "BlockSize:i",
    "EmbeddingLookupSparse": "Combiner:b",
    "Mul": "FusedActivationFunction:b",
    "Gather": "Axis:i BatchDims:i",
    "Reducer": "KeepDims:?",
    "Sub": "FusedActivationFunction:b PotScaleInt16:?=1",
    "Div": "FusedActivationFunction:b",
    "Squeeze": "SqueezeDims:[i",
    "SequenceRNN": "TimeMajor:? FusedActivationFunction:b AsymmetricQuantizeInputs:?",
    "StridedSlice": "BeginMask:i EndMask:i EllipsisMask:i NewAxisMask:i ShrinkAxisMask:i Offset:?",
    "Split": "NumSplits:i",
    "Cast": "InDataType:b OutDataType:b",
    "ArgMax": "OutputType:b",
    "TransposeConv": "Padding:b StrideW:i StrideH:i FusedActivationFunction:b QuantizedBiasType:b",
    "SparseToDense": "ValidateIndices:?",
    "Shape": "OutType:b",
    "ArgMin": "OutputType:b",
    "FakeQuant": "Min:f Max:f NumBits:i NarrowRange:?",
    "Pack": "ValuesCount:i Axis:i",
    "OneHot": "Axis:i",
    "Unpack": "Num:i Axis:i",
    "BidirectionalSequenceLSTM": (
        "FusedActivationFunction:b CellClip:f ProjClip:f MergeOutputs:? TimeMajor:?=1 AsymmetricQuantizeInputs:?"
    ),
    "BidirectionalSequenceRNN": "TimeMajor:? FusedActivationFunction:b MergeOutputs:? AsymmetricQuantizeInputs:?",
    "UnidirectionalSequenceLSTM": (
        "FusedActivationFunction:b CellClip:f ProjClip:f TimeMajor:? AsymmetricQuantizeInputs:? "
        "DiagonalRecurrentTensors:?"
    ),
    "ResizeNearestNeighbor": "AlignCorners:? HalfPixelCenters:?",
    "LeakyRelu": "Alpha:f",
    "MirrorPad": "Mode:b",
    "SplitV": "NumSplits:i",
    "Unique": "IdxOutType:b=2",
    "ReverseSequence": "SeqDim:i BatchDim:i",
    "If": "ThenSubgraphIndex:i ElseSubgraphIndex:i",
    "While": "CondSubgraphIndex:i BodySubgraphIndex:i",
    "DepthToSpace": "BlockSize:i",
    "BatchMatMul": "AdjX:? AdjY:? AsymmetricQuantizeInputs:?",
    "Cumsum": "Exclusive:? Reverse:?",
    "CallOnce": "InitSubgraphIndex:i",
    "Conv3D": (
        "Padding:b StrideD:i StrideW:i StrideH:i FusedActivationFunction:b DilationDFactor:i=1 DilationWFactor:i=1 "
        "DilationHFactor:i=1"
    ),
    "Hashtable": "TableId:i KeyDtype:b ValueDtype:b",
    "VarHandle": "Container:s SharedName:s",
    "Random": "Seed:q Seed2:q",
    "Bucketize": "Boundaries:[f",
    "Gelu": "Approximate:?",
    "StablehloConcatenate": "Dimension:q",
    "StablehloBroadcastInDim": "BroadcastDimensions:[q",
    "StablehloSlice": "StartIndices:[q LimitIndices:[q Strides:[q",
    "StablehloConvolution": (
        "WindowStrides:[q Padding:[q LhsDilation:[q RhsDilation:[q WindowReversal:[? InputBatchDimension:q "
        "InputFeatureDimension:q InputSpatialDimensions:[q KernelInputFeatureDimension:q "
        "KernelOutputFeatureDimension:q KernelSpatialDimensions:[q OutputBatchDimension:q OutputFeatureDimension:q "
        "OutputSpatialDimensions:[q FeatureGroupCount:q BatchGroupCount:q PrecisionConfig:[I"
    ),
    "StablehloCustomCall": (
        "CallTargetName:s HasSideEffect:? BackendConfig:s ApiVersion:i CalledComputations:[i CustomAttributes:[B"
    ),
    "StablehloReduce": "Dimensions:[q BodySubgraphIndex:i",
    "StablehloScatter": (
        "IndicesAreSorted:? UpdateWindowDims:[q InsertedWindowDims:[q ScatterDimsToOperandDims:[q IndexVectorDim:q "
        "UniqueIndices:? UpdateComputationSubgraphIndex:i"
    ),
    "StablehloCompare": "ComparisonDirection:I CompareType:I",
    "StablehloDynamicSlice": "SliceSizes:[q",
    "StablehloPad": "EdgePaddingLow:[q EdgePaddingHigh:[q InteriorPadding:[q",
    "StablehloIota": "IotaDimension:q",
    "StablehloDotGeneral": (
        "LhsBatchingDimensions:[q RhsBatchingDimensions:[q LhsContractingDimensions:[q RhsContractingDimensions:[q "
        "PrecisionConfig:[I"
    ),
    "StablehloReduceWindow": (
        "WindowDimensions:[q WindowStrides:[q BaseDilations:[q WindowDilations:[q Padding:[q BodySubgraphIndex:i"
    ),
    "StablehloSort": "Dimension:q IsStable:? ComparatorSubgraphIndex:i",
    "StablehloWhile": "CondSubgraphIndex:i BodySubgraphIndex:i",
    "StablehloGather": (
        "OffsetDims:[q CollapsedSliceDims:[q StartIndexMap:[q IndexVectorDim:q SliceSizes:[q IndicesAreSorted:?"
    ),
    "StablehloTranspose": "Permutation:[q",
    "StablehloRngBitGenerator": "Algorithm:b",
    "ReduceWindow": "ReduceFunction:i",
    "StableHLOComposite": (
        "Name:s DecompositionSubgraphIndex:i CompositeAttributes:[B CompositeAttributesFormat:b Version:i"
    ),
}


@cache
def fields_of(options: str) -> dict[str, tuple[int, str, Any]]:
    """Return the fields of a table such as Conv2DOptions: number, format and default (None for texts, vectors)."""
    found: dict[str, tuple[int, str, Any]] = {}
    for number, word in enumerate(_FIELDS.get(options.removesuffix("Options"), "").split()):
        if word != "-":
            name, form = word.split(":")
            form, _, default = form.partition("=")
            found[name] = number, form, _FORMS[form](default or "0") if form in _FORMS else None
    return found

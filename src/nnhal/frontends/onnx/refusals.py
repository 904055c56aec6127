"""Reasons why nodes without an entry are refused."""

TEXTS = "works on texts or lists of them, for which NNAPI has no type"
LISTS = "works on sequences, maps or optional values, for which NNAPI has no type"
DRAWS = "draws random numbers from another generator than NNAPI's only random operation"
TRAINS = "is for training, which NNAPI does not support"
COUNTED = "has an output whose size depends on values, which NNAPI does not support"
SPECTRA = "computes with complex numbers, for which NNAPI has neither type nor operation"
BITS = "works on the bits of integers, for which NNAPI has no operation"

NOTHING = "has no operation in NNAPI"

REFUSED = {
    **dict.fromkeys(("StringConcat", "StringNormalizer", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"), TEXTS),
    **dict.fromkeys(
        (
            "SequenceAt",
            "SequenceConstruct",
            "SequenceEmpty",
            "SequenceErase",
            "SequenceInsert",
            "SequenceLength",
            "SequenceMap",
            "SplitToSequence",
            "ConcatFromSequence",
            "Optional",
            "OptionalGetElement",
            "OptionalHasElement",
        ),
        LISTS,
    ),
    **dict.fromkeys(
        ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"), DRAWS
    ),
    **dict.fromkeys(
        ("Adagrad", "Adam", "Momentum", "Gradient", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"), TRAINS
    ),
    **dict.fromkeys(("NonZero", "Unique", "Compress"), f"of values that are computed at execution {COUNTED}"),
    **dict.fromkeys(("DFT", "STFT"), SPECTRA),
    **dict.fromkeys(("BitShift", "BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor", "BitCast"), BITS),
    "ConstantOfShape": f"of a shape that is computed at execution {COUNTED}",
    "Range": f"of limits that are computed at execution {COUNTED}",
    "Scan": "collects outputs of all iterations, which NNAPI's WHILE cannot",
    "ImageDecoder": "decodes picture files, which no operation of NNAPI does",
    **dict.fromkeys(
        (
            "Det",
            "Acos",
            "Acosh",
            "AffineGrid",
            "Asin",
            "Asinh",
            "Atan",
            "Atanh",
            "Attention",
            "BlackmanWindow",
            "CausalConvWithState",
            "CenterCropPad",
            "Col2Im",
            "CumProd",
            "DeformConv",
            "EyeLike",
            "GlobalLpPool",
            "GridSample",
            "HammingWindow",
            "HannWindow",
            "Hardmax",
            "IsInf",
            "LinearAttention",
            "MaxRoiPool",
            "MaxUnpool",
            "MelWeightMatrix",
            "NonMaxSuppression",
            "RMSNormalization",
            "RoiAlign",
            "RotaryEmbedding",
            "Scatter",
            "Shrink",
            "SwiGLU",
            "TensorScatter",
        ),
        NOTHING,
    ),
}


def why_refused(name: str) -> str:
    """Return why a node without an entry is refused."""
    if "." in name:
        domain = name.rpartition(".")[0]
        return f"is an operator of {domain}, not of ONNX: NNAPI has no operation for it"
    return REFUSED.get(name, NOTHING)

"""Why nodes without an entry are refused."""

TEXTS = "works on texts or lists of them, for which NNAPI has no type"
LISTS = "works on sequences, maps or optional values, for which NNAPI has no type"
DRAWS = "draws random numbers by a generator of its own, which NNAPI's only random operation does not follow"
TRAINS = "is of training, which NNAPI does not do"
COUNTED = "gives as many elements as its values say, a size that no operation of NNAPI computes"
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
    "Scan": "keeps a list of what each step gives, which NNAPI's WHILE does not",
    "ImageDecoder": "reads picture files, which no operation of NNAPI does",
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
    """Why a node that has no entry is refused."""
    if "." in name:
        domain = name.rpartition(".")[0]
        return f"is of {domain}, none of ONNX's own operators: NNAPI has no operation for it"
    return REFUSED.get(name, NOTHING)

"""Reasons why operators without an entry are refused."""

UNRUN = "has no kernel in LiteRT, which does not run files with it either"
STRINGS = "works on strings or tables of them, for which NNAPI has no type"
SIXTEEN = "is of INT16, which NNAPI supports only for states and weights of its quantised LSTMs, without conversions"
TAKE_SIXTEEN = ("LSTM", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM")
DRAWS = "draws random numbers from LiteRT's generator, which NNAPI's only random operation lacks"
DELEGATED = "belongs to another engine's delegate, which only that engine can read"
COUNTED = "has an output whose size depends on values, which NNAPI does not support"

REFUSED = {
    "BITCAST": "reads the bits of a number as another type, which no operation of NNAPI does",
    "CALL": UNRUN,
    "CONCAT_EMBEDDINGS": UNRUN,
    "CUSTOM": "is defined by its author: NNAPI has no operation of that name",
    "DELEGATE": DELEGATED,
    "HASHTABLE": STRINGS,
    "HASHTABLE_FIND": STRINGS,
    "HASHTABLE_IMPORT": STRINGS,
    "HASHTABLE_SIZE": STRINGS,
    "MULTINOMIAL": DRAWS,
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "is not an operator: files use it if the number of one does not fit a byte",
    "RANDOM_STANDARD_NORMAL": DRAWS,
    "RANDOM_UNIFORM": DRAWS,
    "SKIP_GRAM": STRINGS,
    "STABLEHLO_CUSTOM_CALL": "is defined by its author: NNAPI has no operation of that name",
    "STABLEHLO_RNG_BIT_GENERATOR": DRAWS,
    "UNIQUE": COUNTED,
    "WHERE": f"of a condition that is computed at execution {COUNTED}",
}

# Without an entry, because constant inputs are computed at import.
COMPUTED = {
    "RANGE": f"of limits that are computed at execution {COUNTED}",
}


def why_refused(name: str) -> str:
    """Return why an operator of the schema without an entry is refused."""
    return REFUSED.get(name) or COMPUTED.get(name) or UNRUN

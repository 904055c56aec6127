"""Why operators without an entry are refused."""

UNRUN = "has no kernel in LiteRT, which does not run files with it either"
STRINGS = "works on strings or tables of them, for which NNAPI has no type"
SIXTEEN = "is of INT16, which NNAPI has only for states and weights of its quantised LSTMs: nothing converts it"
TAKE_SIXTEEN = ("LSTM", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM")
DRAWS = "draws random numbers by LiteRT's own generator, which NNAPI's only random operation does not follow"
DELEGATED = "belongs to another engine's delegate, which only that engine can read"
COUNTED = "gives as many elements as its values say, a size that no operation of NNAPI computes"

REFUSED = {
    "BITCAST": "reads the bits of a number as another type, which no operation of NNAPI does",
    "CALL": UNRUN,
    "CONCAT_EMBEDDINGS": UNRUN,
    "CUSTOM": "is whatever its author made it: NNAPI has no operation of that name",
    "DELEGATE": DELEGATED,
    "HASHTABLE": STRINGS,
    "HASHTABLE_FIND": STRINGS,
    "HASHTABLE_IMPORT": STRINGS,
    "HASHTABLE_SIZE": STRINGS,
    "MULTINOMIAL": DRAWS,
    "PLACEHOLDER_FOR_GREATER_OP_CODES": "is no operator: files have it where the number of one does not fit into a byte",
    "RANDOM_STANDARD_NORMAL": DRAWS,
    "RANDOM_UNIFORM": DRAWS,
    "SKIP_GRAM": STRINGS,
    "STABLEHLO_CUSTOM_CALL": "is whatever its author made it: NNAPI has no operation of that name",
    "STABLEHLO_RNG_BIT_GENERATOR": DRAWS,
    "UNIQUE": COUNTED,
    "WHERE": f"of a condition that is computed at execution {COUNTED}",
}

# Without an entry, since inputs that are constant are computed at import.
COMPUTED = {
    "RANGE": f"of limits that are computed at execution {COUNTED}",
}


def why_refused(name: str) -> str:
    """Why an operator of the schema that has no entry is refused."""
    return REFUSED.get(name) or COMPUTED.get(name) or UNRUN

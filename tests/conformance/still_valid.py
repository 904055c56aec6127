"""Mutants that are valid models all the same: (mutation, operation) and why."""

TYPES = "operand type of an operation"
SHORTER = "removed input"
GONE = "removed operand"
LIFETIME = "operand lifetime"
NCHW_DEFAULT = "the argument `nchw` may be left out: it is then false"
STILL_VALID: dict[tuple[str, str], str] = {
    (TYPES, "ARGMAX"): "the input's type is free and the output is an index",
    (TYPES, "ARGMIN"): "the input's type is free and the output is an index",
    (TYPES, "CAST"): "every pair of types is a cast",
    (TYPES, "DEQUANTIZE"): "every quantised type can be dequantised, to either float type",
    (TYPES, "QUANTIZE"): "either float type can be quantised, to either 8-bit type",
    (TYPES, "RANDOM_MULTINOMIAL"): "the logits may be of either float type; the output is indices",
    (SHORTER, "AVERAGE_POOL_2D"): NCHW_DEFAULT,
    (SHORTER, "MAX_POOL_2D"): NCHW_DEFAULT,
    (GONE, "AVERAGE_POOL_2D"): NCHW_DEFAULT,
    (GONE, "MAX_POOL_2D"): NCHW_DEFAULT,
    (LIFETIME, "QUANTIZED_LSTM"): "an optional argument without a value is an omitted one",
}

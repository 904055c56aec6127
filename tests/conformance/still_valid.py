"""Mutants that are valid models all the same: (mutation, operation) and why."""

TYPES = "operand type of an operation"
ADDED = "added input"
LAYOUT = "the argument `nchw` may be left out: it is then false"
AXIS = "the argument `axis` may be left out: it is then the last"
FLAGS = "`nchw`, `align_corners` and `half_pixel_centers` may be left out, and all are BOOL"
WITHOUT_LAST = {
    "AVERAGE_POOL_2D": LAYOUT,
    "MAX_POOL_2D": LAYOUT,
    "CONV_2D": LAYOUT,
    "BATCH_TO_SPACE_ND": LAYOUT,
    "SPACE_TO_BATCH_ND": LAYOUT,
    "DEPTH_TO_SPACE": LAYOUT,
    "SPACE_TO_DEPTH": LAYOUT,
    "L2_NORMALIZATION": AXIS,
    "LOCAL_RESPONSE_NORMALIZATION": AXIS,
    "SOFTMAX": AXIS,
    "RESIZE_BILINEAR": FLAGS,
    "RESIZE_NEAREST_NEIGHBOR": FLAGS,
}
STILL_VALID: dict[tuple[str, str], str] = {
    (TYPES, "ARGMAX"): "the input's type is free and the output is an index",
    (TYPES, "ARGMIN"): "the input's type is free and the output is an index",
    (TYPES, "CAST"): "every pair of types is a cast",
    (TYPES, "DEQUANTIZE"): "every quantised type can be dequantised, to either float type",
    (TYPES, "LSH_PROJECTION"): "hashes and weights may be of either float type, the input of any; the output is bits",
    (TYPES, "QUANTIZE"): "either float type can be quantised, to either 8-bit type",
    (TYPES, "RANDOM_MULTINOMIAL"): "the logits may be of either float type; the output is indices",
    (TYPES, "RANK"): "tensors of every type have a rank",
    (ADDED, "RESIZE_BILINEAR"): "one more BOOL behind `nchw` is `align_corners`",
    (ADDED, "RESIZE_NEAREST_NEIGHBOR"): "one more BOOL behind `nchw` is `align_corners`",
    ("operand lifetime", "QUANTIZED_LSTM"): "an optional argument without a value is an omitted one",
    ("removed operand", "WHILE"): "a loop variable without an output is a state-only one",
    **{("removed input", operation): reason for operation, reason in WITHOUT_LAST.items()},
    **{("removed operand", operation): reason for operation, reason in WITHOUT_LAST.items()},
}

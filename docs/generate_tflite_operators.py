"""Writes tflite-operators.md: what becomes of every operator of TFLite's schema, out of the importer's own table.

python docs/generate_tflite_operators.py            write the file
python docs/generate_tflite_operators.py --check    say whether it is what would be written
"""

import sys
from pathlib import Path

import tflite

from nnhal.frontends.tflite.fold import MOVES, SUMS
from nnhal.frontends.tflite.lowering import ENTRIES
from nnhal.frontends.tflite.positions import FILLED
from nnhal.frontends.tflite.refusals import why_refused
from nnhal.ops import OPS

FILE = Path(__file__).parent / "reference" / "tflite-operators.md"
INTRODUCTION = """\
# TFLite's operators

Written by `python docs/generate_tflite_operators.py` from the importer's table; do not edit.

Of the {all} operators of TFLite's schema {taken} are imported. What NNAPI has no operation for is made of those it has, with
the numbers of LiteRT's own kernels within float rounding; quantised results of one operator are within one step.
**Constants**: with inputs that are all known the operator is computed at import.
**Real**: where NNAPI's quantised form does not take the scales of the
file, it is dequantised, computed in float32 and quantised. **Places**: of a type or rank that NNAPI's own operation does
not take, the elements are moved by GATHER, up to 1,048,576 of them. **Any rank**: dimensions that broadcast alike are seen
as one, as NNAPI's have four at most.

**Custom operators** are those of well-known files (Convolution2DTransposeBias, TFLite_Detection_PostProcess), and any
of which somebody has said what it is made of, by `nnhal.register_custom_operator`
([writing an extension](../how-to/drivers/extensions.md)).

Where NNAPI and TFLite differ:

- Loops of recurrent layers fill a list: they join the rows before a row, the new row, and the rows behind it. nnhal writes
  that as one DYNAMIC_UPDATE_SLICE, since the sizes of the parts are known only at execution.
- Integer weights beside float inputs (dynamic-range quantisation) stay integers in the model, behind DEQUANTIZE, so that
  every device computes with their real values. LiteRT's kernels for such files quantise the activations as well, which is
  faster and less exact: `driver_options={{"litert": {{"dynamic_range": True}}}}` asks for that, bit by bit, of CONV_2D,
  DEPTHWISE_CONV_2D, FULLY_CONNECTED, LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM ([exact numerics](../contributing/numerics.md)).
- INT16 is TENSOR_QUANT16_SYMM, which NNAPI has only within its quantised LSTMs; no arithmetic takes it, and nothing converts
  it, so models with activations of 16 bits are refused.
- LSTM and UNIDIRECTIONAL_SEQUENCE_LSTM of INT8 give LiteRT's very numbers, a step of the sequence as an operation of its
  own; LSTM's basic kernel of UINT8 and SVDF of INT8 are within one step. Of other quantised recurrent operators LiteRT has
  no kernels.
- QUANTIZE from one scale to another gives the step nearest to the real value, as LiteRT's own kernel does. XNNPACK's, which
  LiteRT prefers, has 8 bits for the quotient of the scales and is off by up to 0.73 of a step (0.5 is the best there is), so
  models with it may differ by one step from there on.
- FLOOR_MOD of floats is exact for quotients below 2**24 and divisors below 1e34.
- CONCATENATION of integers wants shapes that are known, as NNAPI's takes none and their elements are moved.
- NON_MAX_SUPPRESSION_V4 and V5 choose a box without area again and again, as LiteRT does.
- LSTM and its sequences with fused activation NONE are computed as defined: LiteRT's kernel gives out the cell's input in
  place of the cell's state.
- A fused TANH is computed. Of LiteRT's kernels only some do, such as FULLY_CONNECTED's; those of ADD, SUB, MUL, DIV, of
  convolutions and of pooling leave it out without a word. No converter is known to write it there.
- An index outside of its dimension fails the execution, as LiteRT's does, and is never another element: of GATHER_ND,
  SCATTER_ND, SPARSE_TO_DENSE, GATHER with batches, REVERSE_SEQUENCE and the unsorted segments by a GATHER that looks each
  one up. One that is known refuses the file.
- MEAN of int32 is exact, over 46,340 elements at most.
- ATAN2 gives 0 no sign, and takes numbers below 1.2e-38 for that. GELU's erf and ATAN2 are polynomials with relative errors
  below 5e-7; GELU of -inf is 0, its limit.
- L2_NORMALIZATION makes vectors of length 1. LiteRT divides by 1e-6 at least, and leaves shorter ones shorter.
- Weights of 4 bits (INT4) have no type in NNAPI, and are refused.
- An ellipsis of STRIDED_SLICE may stand for no dimension, as numpy's does; LiteRT cuts the next one with it.
- REDUCE_PROD of INT8 gives the step nearest to the real product; LiteRT's kernel is far off.
- NNAPI has no complex numbers: RFFT2D is imported where REAL, IMAG, COMPLEX_ABS or CAST read it, or where moves
  (RESHAPE, SQUEEZE, TRANSPOSE and the like) stand before one of them: each part is moved.

"""


def notes(name: str) -> str:
    """What else holds of an operator."""
    entry = ENTRIES.get(name)
    found = [
        "constants" if name in MOVES or name in SUMS else "",
        "real" if entry is not None and entry.real else "",
        "any rank" if entry is not None and entry.single else "",
        "places" if name in MOVES or name in FILLED else "",
    ]
    return ", ".join(part for part in found if part)


def fate(name: str) -> str:
    """What becomes of an operator."""
    entry = ENTRIES.get(name)
    if entry is None:
        return (
            f"computed where its inputs are constant; {why_refused(name)}"
            if name in SUMS
            else f"refused: {why_refused(name)}"
        )
    return entry.becomes or (name if name in OPS else " ".join((entry.lower.__doc__ or "").split()).rstrip("."))


def text() -> str:
    """The whole page."""
    names = sorted(n for n, number in vars(tflite.BuiltinOperator).items() if isinstance(number, int))
    taken = sum(name in ENTRIES or name in SUMS for name in names)
    rows = [f"| {name} | {fate(name)} | {notes(name)} |" for name in names]
    head = ["| operator | becomes | also |", "| --- | --- | --- |"]
    return INTRODUCTION.format(all=len(names), taken=taken) + "\n".join([*head, *rows]) + "\n"


if __name__ == "__main__":
    from generated import main

    sys.exit(main(FILE, text))

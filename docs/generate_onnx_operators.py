"""Writes onnx-operators.md: what becomes of every operator of ONNX, out of the importer's own table.

python docs/generate_onnx_operators.py            write the file
python docs/generate_onnx_operators.py --check    say whether it is what would be written
"""

import sys
from pathlib import Path

from nnhal.frontends.onnx.fold import MOVES, SUMS
from nnhal.frontends.onnx.lowering import NODES
from nnhal.frontends.onnx.quantised import MOVED, QUANTISED
from nnhal.frontends.onnx.refusals import REFUSED, why_refused

FILE = Path(__file__).parent / "reference" / "onnx-operators.md"
READ = {
    "Constant": "a constant",
    "ConstantOfShape": "a constant, of a shape that is known",
    "Range": "a constant, of limits that are known",
    "NonZero": "a constant, of values that are known",
}
INTRODUCTION = """\
# ONNX's operators

Written by `python docs/generate_onnx_operators.py` from the importer's table; do not edit.

Of the {all} operators of ONNX that are listed here (domain `ai.onnx`) {taken} are imported,
of files with operators of version 9 and
later, and {more} of `com.microsoft`. Functions that a file has of its own stand for their nodes. What NNAPI has no
operation for is made of those it has, with the numbers of ONNX Runtime within float rounding; quantised results of
one node are within one step. **Constants**: with inputs that are all known the node is computed at import. **Any
rank**: dimensions that broadcast alike are seen as one, as NNAPI's have four at most. **Places**: of a type or rank
that NNAPI's own operation does not take, the elements are moved by GATHER, up to 1,048,576 of them. **Quantised**:
between DequantizeLinear and QuantizeLinear it works on the stored values, with the file's own scales and zero points.

- Pictures are NCHW in a file; layers are told so (`nchw`), and a device that prefers NHWC gets the model in that
  layout, with transposes where it begins and ends. Rows of elements (layers of one dimension) are pictures one
  element high, and stay such from layer to layer.
- BatchNormalization, and Mul, Add and Sub with a constant for each channel, go into the weights of the layer before
  them; Relu and Clip into its activation.
- Integers of 64 bits are 32 bits in NNAPI: what is known is computed at import, inputs are checked at each call, and
  of sums and products the range is computed. Where 32 bits may not do, the node is refused by name; a float beyond
  them becomes the nearest of them. DOUBLE is taken where it is known.
- A dimension that the file leaves open is taken as 1 and said, or asked for where 1 cannot be right; 0 leaves it open
  until execution. Dimensions of one name are of one size, and an execution that has them otherwise is refused; what has
  no letter, as the `?` of some exporters or `-1`, is no name.
- Weights stay where they lie in the file, or in files beside it in the model's folder or below (no links, no `..`),
  where the operation takes them in the file's order and they are aligned. Filters of convolutions have another order
  in NNAPI and are copied, those of 1x1 excepted.
- uint8 and int8 weights beside inputs of the other type are moved by 128 with their zero point, which changes no real
  value. uint8 weights with a scale for each channel are taken where their zero points are 128.
- Nodes that read the stored numbers themselves (MaxPool, Max, Concat, Where, ... behind QuantizeLinear) take tensors of
  one scale and zero point, and constants as such numbers.
- LSTM and RNN take one activation for cell and output, sequences of equal length, and no clip. GRU is written step by
  step, up to 1,024: `onnxruntime` and `openvino` [run it whole](../contributing/numerics.md#gru). Loop is written step
  by step where its count is known, up to 256, and a list of results is asked for or the steps are few nodes; else WHILE,
  which keeps no list.
- Resize is NNAPI's where that takes the same elements, else GATHER and sums along each axis, cubic as well. A picture whose
  size stays is copied whatever its scales say, as ONNX Runtime does. antialias and tf_crop_and_resize beyond the picture
  are refused.
- Mod of reals has the sign of the divisor, or with fmod of the dividend, at any opset; by an infinite divisor it is NaN.
- Erf, Gelu and their kin are polynomials and EXP with relative errors below 5e-7; Gelu(-inf) is 0, its limit.
- Clip keeps to the bounds it has, the greatest finite number among them, and where it has none to none; ONNX Runtime to the
  greatest finite number then.
- A dimension that is open at import may come back behind others it was joined with, (N, 3, 4) of (3N, 4) say: what -1
  stands for in a Reshape is looked up with sizes on trial, and refused where that is no one number and another dimension is
  open, too. Dimensions of inputs that have one name are one, others are not; what comes out of If and Loop has its own.
- Windows that reach over the padded picture and sparse constants are refused.

"""


def notes(name: str) -> str:
    """What else holds of an operator."""
    entry = NODES.get(name)
    found = [
        "constants" if name in MOVES or name in SUMS else "",
        "any rank" if entry is not None and entry.single else "",
        "places" if name in MOVES and entry is not None else "",
        "quantised" if name in QUANTISED or name in MOVED else "",
    ]
    return ", ".join(part for part in found if part)


def row(name: str) -> str:
    """A line of the table."""
    entry = NODES.get(name)
    becomes = entry.becomes if entry is not None else READ.get(name, "")
    if becomes:
        return f"| {name} | {becomes} | {notes(name)} |"
    return f"| {name} | refused: {why_refused(name)} | {notes(name)} |"


def text() -> str:
    """The whole page."""
    names = sorted(name for name in {*NODES, *READ, *REFUSED} if "." not in name)
    own = sorted(name for name in NODES if "." in name)
    taken = [name for name in names if name in NODES or name in READ]
    lines = ["| operator | becomes | and |", "| --- | --- | --- |", *map(row, names), *map(row, own)]
    head = INTRODUCTION.format(all=len(names), taken=len(taken), more=len(own))
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    from generated import main

    sys.exit(main(FILE, text))

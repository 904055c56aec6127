"""Entries of NON_MAX_SUPPRESSION: select the best box and suppress overlapping ones, as often as there are rows."""

import numpy as np

from nnhal.base.operands import Value
from nnhal.frontends.common.functions import TINY, RealArithmetic
from nnhal.frontends.common.terms import Term, constant
from nnhal.frontends.common.writing import either, filled, ones
from nnhal.frontends.tflite.task import OperatorTask, operator
from nnhal.ops.schema import F32, I32

LOWEST = float(np.finfo(np.float32).min)  # of suppressed boxes: below every threshold
MOST_BOXES = 1 << 24  # their numbers are exact as floats
MADE_OF = "ARGMAX, GATHER, arithmetic and SELECT for each row of the output"


@operator("NON_MAX_SUPPRESSION_V4", inputs=5, outputs=2, becomes=MADE_OF)
@operator("NON_MAX_SUPPRESSION_V5", inputs=6, outputs=3, becomes=MADE_OF)
def suppress(t: OperatorTask) -> None:
    """Select boxes. V5 lowers the scores of slightly overlapping boxes, and also returns the scores."""
    boxes, scores, rows = t.x(0), t.x(1), t.integer(2, "max_output_size")
    overlap, least = t.number(3, "iou_threshold"), t.number(4, "score_threshold")
    soft = t.name.endswith("V5")
    sigma = t.number(5, "soft_nms_sigma") if soft else 0.0
    count = t.known(scores)[0]
    t.require(boxes.value.type == scores.value.type == F32, "of other types than FLOAT32 is not in TFLite")
    t.require(t.known(boxes) == (count, 4) and count and rows > 0, "must have boxes, a score for each, and rows")
    t.require(count <= MOST_BOXES, f"has {count} boxes, must have at most {MOST_BOXES}")
    t.require(least > LOWEST, f"score_threshold is {least}, must be greater than {LOWEST}")
    r = RealArithmetic(t)
    sides = BoxCorners(r, t.make("TRANSPOSE", boxes, t.integers([1, 0])))
    out = constant(Value(F32), np.full((1, count), LOWEST, np.float32))
    left = t.reshaped(scores, (1, count))
    able = r.test("GREATER", left, least)
    left = r.choose(able, left, out)
    # LiteRT selects no more often than there are boxes.
    most = t.make("REDUCE_SUM", either(t, able, 1, 0, F32), t.integers([1]), True)
    places, values, total = [], [], None
    for row in range(rows):
        (best,) = t.run("ARGMAX", left, 1, outs=[Value(I32, None)])
        top, place = t.make("GATHER", left, 1, best), t.reshaped(best, (1, 1))
        found = t.make("LOGICAL_AND", r.test("GREATER", top, least), r.test("GREATER", most, row))
        chosen = t.make("SELECT", found, place, filled(t, (1, 1), 0, I32), like=place)
        places.append(t.make("CAST", chosen, like=Value(F32)))  # because CONCATENATION rejects integers
        values.append(r.choose(found, top, filled(t, (1, 1), 0, F32)))
        one = ones(t, found)
        total = one if total is None else t.make("ADD", total, one, activation=0)
        shared = sides.shared(best)
        gone = r.test("GREATER_EQUAL", shared, overlap)  # also the box itself, unless it has no area, as in LiteRT
        if sigma > 0:
            left = r("MUL", left, t.make("EXP", r("MUL", r("MUL", shared, shared), -0.5 / sigma)))
            gone = t.make("LOGICAL_OR", gone, t.make("LOGICAL_NOT", r.test("GREATER", left, least)))
        left = r.choose(gone, out, left)
    lists = [places, values][: 1 + soft]
    joined = [t.make("CONCATENATION", *each, 1) if rows > 1 else each[0] for each in lists]
    joined[0] = t.make("CAST", joined[0], like=Value(I32))
    for number, term in enumerate(joined):
        t.result(number, t.reshaped(term, (rows,)))
    if total is not None:
        t.result(1 + soft, t.reshaped(total, (1,)))


class BoxCorners:
    """Boxes by their sides, each a row of numbers: any two opposite corners define a box."""

    def __init__(self, r: RealArithmetic, boxes: Term) -> None:
        self.r, rows = r, r.t.run("SPLIT", boxes, 0, 4, outs=[Value(F32, None)] * 4)
        self.ends = [(r("MINIMUM", rows[n], rows[n + 2]), r("MAXIMUM", rows[n], rows[n + 2])) for n in (0, 1)]
        height, width = (r("SUB", high, low) for low, high in self.ends)
        self.area = r("MUL", height, width)

    def shared(self, best: Term) -> Term:
        """Return the intersection of all boxes with one, divided by their union."""
        r, lengths = self.r, []
        for low, high in self.ends:
            reach = r("SUB", r("MINIMUM", high, self._of(high, best)), r("MAXIMUM", low, self._of(low, best)))
            lengths.append(r("MAXIMUM", reach, 0.0))
        common = r("MUL", *lengths)
        union = r("SUB", r("ADD", self.area, self._of(self.area, best)), common)
        return r("DIV", common, r("MAXIMUM", union, TINY))

    def _of(self, row: Term, best: Term) -> Term:
        return self.r.t.make("GATHER", row, 1, best)

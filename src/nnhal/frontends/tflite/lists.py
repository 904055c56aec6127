"""Recognises lists of tensors that a loop fills, as converters write them, and rewrites each update as one operator."""

from typing import NamedTuple

from nnhal.base.records import replace
from nnhal.frontends.tflite.file import File, FileSubgraph, FileTensor, Operator

LIFTS = frozenset(("RESHAPE", "EXPAND_DIMS"))  # which make a list of one number from it


class Update(NamedTuple):
    """The replacement of a row in a list.

    place: the row's number before zeros or minus ones; `zeros` makes zeros of those.
    """

    whole: int
    row: int
    place: int
    zeros: int
    parts: tuple[Operator, Operator]


class ListReader:
    """Reads the list operations of a subgraph."""

    def __init__(self, source: FileSubgraph, file: File) -> None:
        self._source, self._file = source, file
        self._made = {index: operator for operator in source.operators for index in operator.outputs}

    def update(self, joined: Operator) -> Update | None:
        """Return the row replacement of a CONCATENATION: list[:n], the row, list[n + 1:] along axis 0."""
        if joined.name != "CONCATENATION" or len(joined.inputs) != 3:
            return None
        before, after = (self._made.get(joined.inputs[place]) for place in (0, 2))
        if before is None or after is None or before.name != "SLICE" or after.name != "SLICE":
            return None
        (whole, start, place), (same, behind, rest) = before.inputs, after.inputs
        sizes, new = self._source.tensors[whole].shape, self._source.tensors[joined.inputs[1]]
        options = joined.options.read("ConcatenationOptions")
        number, following = self._number(place, -1, len(sizes)), self._number(behind, 0, len(sizes))
        fits = (
            same == whole
            and (options("Axis"), options("FusedActivationFunction")) == (0, 0)
            and new.shape == (1, *sizes[1:])
            and 0 not in new.open
            and self._constant(start) == [0] * len(sizes)
            and self._constant(rest) == [-1] * len(sizes)
            and number is not None
            and following is not None
            and self._next(following, number)
        )
        return Update(whole, joined.inputs[1], place, start, (before, after)) if fits else None

    def _constant(self, index: int) -> list[int] | None:
        tensor = self._source.tensors[index] if index >= 0 else None
        if tensor is None or tensor.blob is None or tensor.type != "INT32" or index in self._made:
            return None
        found: list[int] = self._file.bytes_of(tensor.blob).view("<i4").tolist()
        return found

    def _number(self, index: int, others: int, rank: int) -> int | None:
        """Return the tensor whose number is first in a list of `rank` numbers; the others must be equal."""
        joined = self._made.get(index)
        if joined is None or joined.name != "CONCATENATION" or len(joined.inputs) != 2:
            return None
        lifted = self._made.get(joined.inputs[0])
        if lifted is None or lifted.name not in LIFTS or self._source.tensors[lifted.inputs[0]].shape != ():
            return None
        return lifted.inputs[0] if self._constant(joined.inputs[1]) == [others] * (rank - 1) else None

    def _next(self, index: int, number: int) -> bool:
        """Whether a tensor is a number plus 1."""
        total = self._made.get(index)
        if total is None or total.name != "ADD" or number not in total.inputs:
            return False
        one = total.inputs[1 - total.inputs.index(number)]
        return self._constant(one) == [1]


def with_updates(source: FileSubgraph, file: File) -> FileSubgraph:
    """Rewrite each replacement of a row as a DYNAMIC_UPDATE_SLICE.

    The sizes of the slices of a list before and after a row are known only at execution; that of the list is known.
    """
    reader = ListReader(source, file)
    found = {operator.index: update for operator in source.operators if (update := reader.update(operator))}
    if not found:
        return source
    tensors, operators = list(source.tensors), list[Operator]()
    for operator in source.operators:
        update = found.get(operator.index)
        if update is None:
            operators.append(operator)
            continue
        starts = len(tensors)
        tensors.append(FileTensor(f"{tensors[update.place].name} from 0", "INT32", (len(tensors[update.whole].shape),)))
        given = update.place, update.zeros
        operators += [
            replace(operator, name="MAXIMUM", inputs=given, outputs=(starts,)),
            replace(operator, name="DYNAMIC_UPDATE_SLICE", inputs=(update.whole, update.row, starts)),
        ]
    read = {*source.outputs, *(index for operator in operators for index in operator.inputs)}
    unread = {part.index for update in found.values() for part in update.parts if read.isdisjoint(part.outputs)}
    return replace(source, tensors=tuple(tensors), operators=tuple(o for o in operators if o.index not in unread))

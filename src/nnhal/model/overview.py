"""Groups of neighbouring operations, for a picture of a large model that is readable at the width of a page.

A group ends where few tensors are alive, so that few arrows leave it, and where the device changes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from nnhal.base.brief import with_count
from nnhal.base.records import Record
from nnhal.model.outline import Outline

GROUPS = 24  # about as many in a picture
LONGEST = 3  # times the average length of a group
KINDS = 3  # kinds of operations that a group names


class OutlineGroup(Record, frozen=True):
    """Operations in order, by their numbers."""

    operations: tuple[int, ...]

    def kinds(self, outline: Outline) -> str:
        """Describe its operations: `10 CONV_2D, 8 ADD, 6 others`."""
        counts = Counter(outline.nodes[n].name for n in self.operations).most_common()
        words = [f"{count} {name}" for name, count in counts[:KINDS]]
        others = sum(count for _, count in counts[KINDS:])
        return ", ".join([*words, *([with_count(others, "other")] if others else [])])


def groups_of(outline: Outline, device_of: Mapping[int, str]) -> list[OutlineGroup]:
    """Divide all operations except the folded ones into groups, at most about `GROUPS`.

    Args:
        outline: The model.
        device_of: The device of each placed operation. A group lies on one device, unless more than `GROUPS` neighbours
            differ.
    """
    shown = [n for n in range(len(outline.nodes)) if n not in outline.folded]
    if not shown:
        return []
    alive = _alive(outline, shown)
    changes = [n for n in range(1, len(shown)) if device_of.get(shown[n]) != device_of.get(shown[n - 1])]
    ends = [*(changes if len(changes) < GROUPS else ()), len(shown)]
    size = max(1.0, len(shown) / GROUPS)
    groups, begin = list[OutlineGroup](), 0
    for end in ends:
        for first, last in _cuts(alive, begin, end, size):
            groups.append(OutlineGroup(tuple(shown[first:last])))
        begin = end
    return groups


def _alive(outline: Outline, shown: Sequence[int]) -> list[int]:
    """Count for each place the tensors that an operation before it writes and one after it reads."""
    last_read: dict[int, int] = dict.fromkeys(outline.outputs, len(shown))
    for place, n in enumerate(shown):
        for key in outline.nodes[n].inputs:
            last_read[key] = max(last_read.get(key, 0), place)
    change = [0] * (len(shown) + 2)
    for place, n in enumerate(shown):
        for key in outline.nodes[n].outputs:
            if last_read.get(key, -1) > place:
                change[place + 1] += 1
                change[last_read[key] + 1] -= 1
    alive, total = [], 0
    for difference in change[: len(shown) + 1]:
        total += difference
        alive.append(total)
    return alive


def _cuts(alive: Sequence[int], begin: int, end: int, size: float) -> list[tuple[int, int]]:
    """Return the cheapest cuts of a range. A group costs the tensors that leave it, and its distance from the usual size."""
    best = {begin: 0.0}
    before: dict[int, int] = {}
    for last in range(begin + 1, end + 1):
        leaving = alive[last] if last < end else 0
        choices = range(max(begin, last - int(LONGEST * size) - 1), last)
        cost, first = min((best[n] + ((last - n) / size - 1) ** 2 + leaving / 2, n) for n in choices)
        best[last], before[last] = cost, first
    found, last = [], end
    while last > begin:
        found.append((before[last], last))
        last = before[last]
    return found[::-1]

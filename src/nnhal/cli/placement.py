"""A placement in the output of commands."""

from collections.abc import Sequence

from nnhal.base.columns import Section, section
from nnhal.runtime import placement_text as words
from nnhal.runtime.placement import Placement


def placement_sections(placement: Placement, took: Sequence[float] | None = None, *, verbose: bool) -> list[Section]:
    """The partitions of a model that ran, and notes. took: seconds of each partition."""
    title = f"Placement: {words.counted_partitions(placement)}{words.basis(placement)}"
    notes = list(words.partition_notes(placement, layouts=verbose))
    found = [words.partition_section(placement, took, title=[title])]
    return [*found, section([], notes, "notes")] if notes else found


def why_section(placement: Placement, wanted: Sequence[int]) -> list[str]:
    """Where each of these operations runs, and why not elsewhere."""
    return [line for n in wanted for line in words.why_lines(placement, placement.choices[n])]


def chosen_operations(placement: Placement, text: str) -> list[int]:
    """The operations that `--why` asks for: `all`, `#30`, or a part of an operation's name; none where nothing fits."""
    number = text.removeprefix("#")
    if text == "all":
        return [choice.operation for choice in placement.choices]
    if number.isdecimal():
        return [int(number)] if int(number) < len(placement.choices) else []
    return [choice.operation for choice in placement.choices if text.upper() in choice.label]

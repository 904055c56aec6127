"""A placement in the output of commands."""

from collections.abc import Sequence

from nnhal.base.columns import Section, section
from nnhal.runtime import placement_text as words
from nnhal.runtime.placement import Placement


def placement_sections(placement: Placement, took: Sequence[float] | None = None, *, verbose: bool) -> list[Section]:
    """Returns the partitions of a model, and notes.

    Args:
        placement: The placement.
        took: Seconds of each partition, if it ran.
        verbose: Whether to note layouts too.
    """
    title = f"Placement: {words.counted_partitions(placement)}{words.basis(placement)}"
    notes = list(words.partition_notes(placement, layouts=verbose))
    found = [words.partition_section(placement, took, title=[title])]
    return [*found, section([], notes, "notes")] if notes else found


def why_section(placement: Placement, wanted: Sequence[int]) -> list[str]:
    """Returns lines with the device of each of the `wanted` operations, and the reasons against the others."""
    return [line for n in wanted for line in words.why_lines(placement, placement.choices[n])]


def chosen_operations(placement: Placement, text: str) -> list[int]:
    """Returns the operations that match the value of `--why`: `all`, `#30`, or a part of an operation's name."""
    number = text.removeprefix("#")
    if text == "all":
        return [choice.operation for choice in placement.choices]
    if number.isdecimal():
        return [int(number)] if int(number) < len(placement.choices) else []
    return [choice.operation for choice in placement.choices if text.upper() in choice.label]

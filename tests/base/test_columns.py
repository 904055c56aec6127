"""Tables and sections for terminals: aligned, and never wider or higher than asked for."""

import pytest

from nnhal.base.columns import Section, cells, columns, fitted, fixed, section, shortened, wrap_text


def test_columns_are_aligned_and_only_the_last_is_shortened():
    found = columns(["name", ">size", "why"], [["a", 5, "short"], ["longer", 12345, "w" * 30]], indent=2, width=30)
    assert found == [
        "  name     size  why",
        "  a           5  short",
        f"  longer  12345  {'w' * 12}…",
    ]
    assert columns(["", ">"], [["a", 5]]) == ["a  5"] and columns(["", ""], []) == []


@pytest.mark.parametrize(
    ("text", "width", "wanted"),
    [
        ("abc", 3, "abc"),
        ("abcd", 3, "ab…"),
        ("ab cd", 4, "ab…"),
        ("\x1b[2J", 9, "\\x1b[2J"),
        ("猫猫猫", 6, "猫猫猫"),
        ("猫猫猫", 5, "猫猫…"),
        ("", 3, ""),
    ],
)
def test_a_text_is_cut_to_the_columns_that_it_takes(text, width, wanted):
    assert shortened(text, width) == wanted and cells(wanted) <= width


def test_long_text_is_wrapped_to_so_many_lines():
    assert wrap_text("one two three", most=2, indent="  ", width=9) == ["one two", "  three"]
    first, last = wrap_text("one two three four five", most=2, indent="  ", width=9)
    assert first == "one two" and last.endswith("…") and len(last) <= 9


@pytest.mark.parametrize("sizes", [(0,), (3, 2), (100, 2), (24, 24), (1000, 1000, 5)])
def test_sections_lose_rows_until_all_fit_and_say_how_many(sizes):
    sections = [section([f"title {n}"], [f"row {k}" for k in range(size)], "rows") for n, size in enumerate(sizes)]
    lines = fitted([fixed("answer"), *sections, fixed("end")], 24)
    assert len(lines) <= 24 and lines[0] == "answer" and lines[-1] == "end"
    shown = sum(line.startswith("row") for line in lines)
    left = sum(int(line.split()[1]) for line in lines if line.startswith("  … "))
    assert shown + left == sum(sizes)
    assert len(fitted(sections, 0)) >= sum(sizes), "without a height all is drawn"


def test_a_small_section_is_whole_beside_a_large_one():
    lines = fitted([section(["a"], ["x"] * 5, "xs"), section(["b"], ["y"] * 500, "ys")], 24)
    assert lines.count("x") == 5 and lines.count("y") > 5


def test_one_row_is_never_left_out_alone():
    drawn = section(["t"], ["x", "y", "z"], "rows").draw
    assert drawn(2) == ["t", "x", "y", "z"] and drawn(1) == ["t", "x", "  … 2 more rows: --verbose"]


def test_a_section_without_rows_has_no_title():
    assert fitted([section(["title"], [], "rows"), fixed(), fixed("x")], 24) == ["x"]
    assert Section(0, lambda _: []).draw(3) == []

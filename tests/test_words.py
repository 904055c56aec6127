"""The lint of words finds what the style rules forbid, where it stands, and leaves good prose alone."""

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal_lint_words import __main__ as command
from nnhal_lint_words.rules import in_markdown, in_python

BAD = {
    "What is measured counts.": ["What is"],
    "It runs. Who waits gets an error.": ["Who waits"],
    "It runs: Whoever waits is late.": ["Whoever waits"],
    "Of a model it has the name.": ["Of a"],
    "Where a device fails, the CPU runs.": ["Where a"],
    "A driver in a process of its own": ["in a process of its own"],
    "An executor of the driver's own": ["driver's own"],
    "asked anew, in turn, as told": ["anew", "in turn", "as told"],
    "all devices that there are, and all else besides": ["that there are", "all else", "besides"],
    "the device is none": ["is none"],
    "it takes it for a crash": ["takes it for"],
    "for who wants a name, somebody looks": ["for who wants", "somebody"],
    "the name is no device": ["is no"],
    "the first step of the plan": ["step"],
    "a step takes 3 ms": ["step"],
    "crossings cost time": ["crossings"],
    "the driver does not take an operation": ["does not take"],
    "the device takes the operation": ["device takes the operation"],
    "the device states 0.5, its stated performance": ["device states", "stated performance"],
    "the exact form of an operation": ["form"],
    "proved right on this CPU": ["proved"],
    "kept compilations are taken out": ["kept compilations", "taken out"],
    "the service told the client, and says so": ["told", "says"],
    "each turn of the loop": ["each turn"],
    "a lane over the border": ["lane", "border"],
    "its room is too small": ["its room"],
    "the picture is stretched": ["stretched"],
    "the call was given up": ["given up"],
}
GOOD = (
    "nnhal reports what the driver declares, step by step.",
    "One quantisation step of the output is within the tolerance.",
    "The next step: calibrate.",
    "The LSTM runs one time step after another.",
    "It takes 3 ms, and takes an operand from the cache.",
    "The editable form is a text file; two partitions form a group.",
    "There is no deadline, or there is none; a value that is None has no default.",
    "There is no room for another entry.",
    "It turns into an error, and a name turns up twice.",
    "The two vectors differ where a value is negative.",
    "Args: told: the status. room: the buffer.",
    "The `step` of `in turn` is code, and so is `what is told`.",
    "The feature level is 7, the least level of all operations.",
)
PAGE = """---
title: What is told
---
# What is a driver?

You write it.
It reports {word}
its own errors.

```python
told = "what is told"
```

:::{{note}}
The driver is {word}.
:::

| Option | Meaning |
| --- | --- |
| `told` | is {word} |
"""


def found(text: str) -> list[str]:
    """Returns the words that the lint finds in a docstring, in their order."""
    source = f'"""{text}"""\n'
    words = [finding.found.strip('"') for finding in in_python("src/nnhal/runtime/it.py", source)]
    return sorted(words, key=text.find)


@pytest.mark.parametrize("text", BAD)
def test_what_is_forbidden_is_found(text):
    words = found(text)
    assert len(words) == len(BAD[text])
    assert all(expected in word for expected, word in zip(BAD[text], words, strict=True))


@pytest.mark.parametrize("text", GOOD)
def test_good_prose_has_no_finding(text):
    assert found(text) == []


def places(findings: Iterator) -> list[tuple[int, str]]:
    return [(finding.line, finding.found) for finding in findings]


def test_pages_name_hal_versions_and_code_has_levels():
    assert places(in_markdown("docs/it.md", "not at this level", measured=False)) == [(1, '"this level"')]
    assert found("not at this level") == []


def test_docstrings_comments_errors_and_help_are_read_where_they_stand():
    source = '''
def f(x):
    """Do it.

    As it is
    told.
    """
    # anew
    y = x + 1  # and
    # in turn
    raise ValueError(f"{x} was given "
        "up by the driver")
help = "Somebody asks again"
short = "a lane"
name = told
'''
    assert places(in_python("src/nnhal/hal/it.py", source)) == [
        (8, '"anew"'),
        (10, '"in turn"'),
        (13, '"Somebody"'),
        (5, '"is told"'),
        (11, '"given up"'),
    ]


def test_names_in_annotations_and_of_options_are_code():
    source = """
proofs: "Proofs[Device] | None" = None
def f(x: "dict[Lane, Lane] | None") -> "Lane | Lane | None":
    return "Lanes of a driver"
help = "run it with --unconfined or --told-twice now"
"""
    assert places(in_python("src/nnhal/hal/it.py", source)) == [(4, '"Lanes"')]


def test_a_page_is_read_without_its_code_and_front_matter_and_its_headings_may_ask():
    assert places(in_markdown("docs/it.md", PAGE.format(word="told"), measured=True)) == [
        (7, '"told"'),
        (15, '"is told"'),
        (20, '"is told"'),
    ]
    assert places(in_markdown("docs/it.md", PAGE.format(word="right"), measured=True)) == []


def sentence(words: int, count: int = 1) -> str:
    """Returns sentences of so many words, in short lines."""
    return textwrap.fill(f"Word {'word ' * (words - 2)}end. " * count, 40) + "\n"


MEASURES = {
    "mean": (sentence(18), sentence(19), "sentences of 19.0 words in the mean"),
    "p90": (sentence(2, 8) + sentence(28, 2), sentence(2, 8) + sentence(29, 2), "sentences of 29 words at p90"),
    "line": ("x" * 100, "x" * 101, "a line of 101 characters"),
    "link": (f"[{'x' * 98}](target)", f"[{'x' * 99}](target)", "a line of 101 characters"),
    "cell": (f"| {'x' * 160} | y |", f"| {'x' * 161} | y |", "a table cell of 161 characters"),
}


@pytest.mark.parametrize("good, bad, measure", MEASURES.values(), ids=MEASURES)
def test_a_page_of_users_has_short_sentences_lines_and_cells(good, bad, measure):
    assert places(in_markdown("docs/it.md", good, measured=True)) == []
    assert [text for _, text in places(in_markdown("docs/it.md", bad, measured=True))] == [measure]
    assert places(in_markdown("docs/it.md", bad, measured=False)) == []


def test_the_command_fails_for_any_finding_and_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module = tmp_path / "src" / "nnhal" / "hal" / "it.py"
    module.parent.mkdir(parents=True)
    module.write_text("# anew\n")
    assert command.main([], tmp_path) == 1
    assert capsys.readouterr().out == (
        '1 findings: FAILED, replace the words\nsrc/nnhal/hal/it.py:1: "anew" -> again / on each call\n'
    )
    assert command.main(["src/nnhal/ops"], tmp_path) == 0
    module.write_text("# again\n")
    assert command.main([], tmp_path) == 0

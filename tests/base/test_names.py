"""Names out of files are data: shown, they do nothing; as members of archives they stay where they are put."""

import unicodedata
from pathlib import PurePosixPath

import pytest

from nnhal.base.errors import InvalidModel
from nnhal.base.names import LONGEST, is_path, member_names, name_of, printable, short, suggestion, unique

CONTROLS = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c)) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


def test_no_control_bidirectional_or_surrogate_character_is_shown():
    shown = printable("".join(CONTROLS))
    assert len(CONTROLS) > 2000 and shown.isascii() and shown.isprintable()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("a\u202eb", r"a\u202eb"),
        ("line\nline\r", r"line\nline\r"),
        ("größe/日本:0", "größe/日本:0"),
        ("", ""),
    ],
)
def test_what_commands_a_terminal_is_an_escape_and_the_rest_stays(text, shown):
    assert printable(text) == shown


def test_an_error_shows_no_control_of_the_names_in_it():
    assert str(InvalidModel("x\x1b[2Jy\u2066\nz")) == "x\\x1b[2Jy\\u2066\nz"


HOSTILE = [
    "../../../evil",
    "/abs/evil",
    "..",
    ".",
    "",
    "file",
    "x" * 70000,
    "a\0b",
    "o",
    "o",
    "O",
    "o_2",
    "a\\..\\b",
    "a//b",
    " ",
]


def test_members_stay_below_the_folder_are_short_and_all_different():
    names = member_names(HOSTILE)
    assert len({n.casefold() for n in names}) == len(HOSTILE)
    for name in names:
        path = PurePosixPath(name)
        assert name and not path.is_absolute() and ".." not in path.parts and len(name) < LONGEST + 5
        assert name.isprintable() and "\\" not in name


def test_an_ordinary_name_stays_what_it_is():
    ordinary = ["file", "model/output/Softmax", "StatefulPartitionedCall:0", "größe"]
    assert member_names(ordinary) == unique(ordinary) == ordinary


def test_names_that_are_all_alike_are_numbered_at_once():
    names = unique(["o"] * 20_000)
    assert len(set(names)) == 20_000 and names[:3] == ["o", "o_2", "o_3"]


def test_a_name_like_one_that_is_there_is_asked_about() -> None:
    known = ["reference", "litert", "null"]
    assert suggestion("litert2", known) == "; did you mean litert?" and suggestion("zzz", known) == ""
    assert suggestion("add", ["add1", "add2", "add3"]).count(" or ") == 1


def test_a_text_is_shown_to_200_characters() -> None:
    assert short("x" * 200) == "x" * 200 and short("x" * 201) == "x" * 200 + " ..."
    assert short("\x1b") == "\\x1b" and printable("a\nb\r", keep="\n") == "a\nb\\r"


@pytest.mark.parametrize(
    ("driver", "path", "name"),
    [("mine.py", True, "mine"), ("folder/pack", True, "pack"), ("litert", False, "litert"), ("a.b", False, "a.b")],
)
def test_a_driver_is_named_or_given_by_its_path(driver: str, path: bool, name: str) -> None:
    assert is_path(driver) is path and name_of(driver) == name

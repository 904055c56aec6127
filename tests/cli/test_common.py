"""What verbs share: shapes and options as text, JSON, tables, sizes and durations for people, files that are written."""

import json
import logging
import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from rich.color import ColorSystem

from nnhal import zoo
from nnhal.base.errors import InvalidArgument
from nnhal.cli import common
from nnhal.cli.judged import run_with_progress
from nnhal.cli.model_text import metadata_document, metadata_facts, said_of_model
from nnhal.conformance.pool import TaskResult
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (0, "0 B"),
        (10 * 1024 - 1, "10239 B"),
        (10 << 10, "10 KiB"),
        ((10 << 20) - 1, "10239 KiB"),
        (10 << 20, "10 MiB"),
        ((10 << 30) - 1, "10239 MiB"),
        (10 << 30, "10 GiB"),
        ((10 << 40) - 1, "10239 GiB"),
        (10 << 40, "10 TiB"),
        (20_000 << 40, "20000 TiB"),
    ],
)
def test_bytes_are_in_the_largest_unit_that_gives_10_or_more(count, told):
    assert common.size(count) == told


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        ([], None),
        (["1,2,3"], [[1, 2, 3]]),
        (["1,2", "4"], [[1, 2], [4]]),
        (["a=1,2", "b=3"], {"a": [1, 2], "b": [3]}),
        (["a=b=3"], {"a=b": [3]}),
    ],
)
def test_shapes_are_in_order_or_by_name(texts, wanted):
    assert common.parse_shapes(texts) == wanted


@pytest.mark.parametrize(
    ("texts", "told"),
    [(["1,x"], r"must be \[NAME=\]N,N,\.\."), (["a=1", "2"], "must be all or none"), ([""], "must be")],
)
def test_what_is_no_shape_is_refused(texts, told):
    with pytest.raises(click.BadParameter, match=told):
        common.parse_shapes(texts)


def test_json_has_plain_numbers_and_texts_for_what_is_no_number(capsys):
    common.print_json(
        {
            1: np.float32(0.5),
            "a": np.arange(2),
            "b": (np.inf, -np.inf, np.nan),
            "c": [np.bool_(True), None, "x"],
            "d": 2,
        }
    )
    text = capsys.readouterr().out
    assert json.loads(text) == {
        "1": 0.5,
        "a": [0, 1],
        "b": ["inf", "-inf", "nan"],
        "c": [True, None, "x"],
        "d": 2,
    }
    assert text.startswith('{\n  "1": 0.5,\n')


def test_columns_are_aligned_to_the_left_or_to_the_right(capsys):
    common.table(["name", ">count"], [["a", 5], ["long", 12345]], title="what")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "what",
        "name  count",
        "a         5",
        "long  12345",
    ]


def test_placing_is_what_a_compilation_is_asked_for():
    asked = {"strategy": None, "rules": [], "tune": None}
    given = {"fallback": "warn", "threads": 3, "isolate": True, "driver_options": ["k=1"], "numerics": "exact", **asked}
    assert common.compile_arguments(given, ["a"]) == {
        "fallback": "warn",
        "threads": 3,
        "isolation": "process",
        "numerics": "exact",
        "driver_options": {"a": {"k": 1}},
        "placement": None,
        "tune": False,
    }
    assert common.compile_arguments({**given, "isolate": False}, ["a"])["isolation"] == "none"


def test_devices_are_those_named_else_those_loaded_else_all(monkeypatch):
    monkeypatch.setattr(common.discovery, "load_driver", lambda path: SimpleNamespace(name=f"of {path}"))
    assert common.load_drivers([], []) is None
    assert common.load_drivers(["x", "y"], []) == ["of x", "of y"]
    assert common.load_drivers(["x"], ["b"]) == ["b"]
    loaded: list[str] = []
    monkeypatch.setattr(common.discovery, "load_extension", loaded.append)
    common.load_extensions(["x", "y"])
    assert loaded == ["x", "y"]


def test_a_model_of_the_zoo_has_its_usual_shapes_in_whatever_way_it_is_loaded():
    plain = {"shapes": [], "values": [], "signature": None}
    assert common.load_arguments("ocr_recognise", plain)["shapes"] == zoo.entry("ocr_recognise").shapes
    assert common.load_arguments("ocr_recognise", {**plain, "shapes": ["x=1,3,48,96"]})["shapes"] == {
        "x": [1, 3, 48, 96]
    }
    assert (
        common.load_arguments("face_landmark", plain)["shapes"] is None
        and common.load_arguments(__file__, plain)["shapes"] is None
    )


def test_notes_of_a_model_are_said_on_stderr(monkeypatch, capsys):
    model = SimpleNamespace(notes=("one", "two"), metadata=SimpleNamespace(problem="three"), require_sizes=lambda: None)
    asked: list[Any] = []
    monkeypatch.setattr(common.api, "load", lambda *a, **k: asked.append((a, k)) or model)
    assert common.open_model("m", {"shapes": ["1,2"], "values": ["sr=8000"], "signature": "sig"}) is model
    assert asked == [
        (
            ("m",),
            {
                "signature": "sig",
                "shapes": [[1, 2]],
                "values": {"sr": 8000},
                "progress": common.print_progress,
                "cache_dir": False,
            },
        )
    ]
    said = capsys.readouterr()
    assert (said.out, said.err.splitlines()) == ("", ["note: one", "note: two", "note: three"])
    for metadata in (None, SimpleNamespace(problem="")):
        monkeypatch.setattr(
            common.api,
            "load",
            lambda *a, m=metadata, **k: SimpleNamespace(notes=(), metadata=m, require_sizes=lambda: None),
        )
        common.open_model("m", {"shapes": [], "values": [], "signature": None})
        assert capsys.readouterr().err == ""


def test_a_file_that_can_be_written_is_taken_and_no_other(tmp_path, monkeypatch):
    kind = common.Writable()

    def asked(path: Path) -> Any:
        return kind.convert(str(path), None, None)

    (tmp_path / "there").write_text("")
    for name in ("new", "there"):
        assert asked(tmp_path / name) == tmp_path / name
    looked: list[tuple[Path, int]] = []
    monkeypatch.setattr(os, "access", lambda path, mode: looked.append((path, mode)) or mode == os.R_OK)
    for path, where, mode in (
        (tmp_path / "new", tmp_path, os.W_OK | os.X_OK),
        (tmp_path / "there", tmp_path / "there", os.W_OK),
    ):
        with pytest.raises(InvalidArgument, match=f"output {path}: {where} is not writable, must be a file"):
            asked(path)
        assert looked.pop() == (where, mode)
    with pytest.raises(InvalidArgument, match="does not exist, must be a file that can be written"):
        asked(tmp_path / "no" / "x")
    with pytest.raises(click.BadParameter):
        asked(tmp_path)


def test_what_was_written_is_said_and_what_cannot_be_is_an_error(tmp_path, capsys):
    common.write(tmp_path / "x", b"abc")
    assert (tmp_path / "x").read_bytes() == b"abc" and "wrote" in capsys.readouterr().err
    with pytest.raises(InvalidArgument, match="Is a directory"):
        common.write(tmp_path, b"")


@pytest.mark.parametrize("which", ["console", "status"])
def test_what_is_printed_is_no_markup_and_no_emoji_and_has_no_colours(which, capsys, monkeypatch):
    console = getattr(common, which)
    monkeypatch.setattr(console, "_force_terminal", True)
    monkeypatch.setattr(console, "_color_system", ColorSystem.STANDARD)
    console.print("[bold]:smile: 12 'x'[/bold]", soft_wrap=True)
    said = capsys.readouterr()
    assert (said.out if which == "console" else said.err) == "[bold]:smile: 12 'x'[/bold]\n"


def test_a_long_line_is_one_line(capsys):
    common.console.print("word " * 100)
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize("terminal", [True, False])
def test_a_progress_bar_is_quiet_where_it_is_asked_to_be_and_where_there_is_no_terminal(monkeypatch, terminal):
    monkeypatch.setattr(common, "status", common.PlainConsole(stderr=True, force_terminal=terminal))
    assert common.progress(True).disable and common.progress(False).disable is not terminal
    assert common.progress(False).live.transient


# ------------------------------------------------------------------------------------------------------ verdicts counted


def outcome(verdict: str) -> Any:
    return SimpleNamespace(verdict=verdict)


def test_outcomes_are_followed_to_the_end_and_the_results_closed():
    closed: list[bool] = []

    def results():
        try:
            yield TaskResult([outcome("passed")], Counter({"run": 2}), "one"), 1, 3
            yield TaskResult([outcome("failed"), outcome("hung")], Counter({"run": 1, "prepare": 1}), "two"), 3, 3
        finally:
            closed.append(True)

    found = run_with_progress(results(), "vectors", "vectors on", "nobody", True)
    assert [o.verdict for o in found] == ["passed", "failed", "hung"] and closed == [True]
    assert run_with_progress((x for x in ()), "vectors", "vectors on", "nobody", True) == []


def test_what_is_followed_is_told_with_what_went_badly(monkeypatch):
    told: list[Any] = []

    class Bar:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def add_task(self, what, total):
            told.append((what, total))
            return 7

        def update(self, task, **how):
            told.append((task, how))

    monkeypatch.setattr(common, "progress", lambda quiet: told.append(quiet) or Bar())
    results = [
        (TaskResult([outcome("failed")], Counter(), "d"), 1, 4),
        (TaskResult([outcome("passed"), outcome("failed"), outcome("crashed")], Counter(), "d"), 4, 4),
    ]
    run_with_progress((each for each in results), "checks", "checks of", "", False)
    assert told == [
        False,
        ("checks", None),
        (7, {"completed": 1, "total": 4, "description": "checks of d, 1 failed", "left": ""}),
        (7, {"completed": 4, "total": 4, "description": "checks of d, 2 failed, 1 crashed", "left": ""}),
    ]


# --------------------------------------------------------------------------------------------------------------- metadata


def test_what_a_file_says_of_the_model_is_one_line_and_nothing_where_it_says_nothing():
    assert said_of_model(Metadata()) == "" and metadata_document(None) is None
    assert said_of_model(Metadata(name="n", licence="l")) == "n, l"
    assert said_of_model(Metadata(description="finds things.")) == "finds things"
    assert said_of_model(Metadata(name="n", version="v", author="a", licence="l", description="d.")) == "n, v, a, l: d"
    file = AssociatedFile("f.txt", "names.", "vocabulary", "de")
    assert said_of_model(Metadata(files=(file, AssociatedFile("g")))) == (
        "comes with f.txt (vocabulary, de, names.), g"
    )


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({}, ""),
        ({"name": "x"}, ""),
        ({"description": "what."}, "what"),
        ({"name": "x", "content": "image", "colour": "RGB"}, "image RGB"),
        ({"colour": "RGB"}, "RGB"),
        ({"dimension_names": ("h", "w")}, "dimensions h, w"),
        ({"mean": (1.0,), "std": (2.0,)}, "(value - 1) / 2"),
        ({"mean": (1.0, 1.0), "std": (2.0, 3.0)}, "(value - 1) / [2, 3]"),
        ({"mean": (1.0,)}, ""),
        ({"least": (0.0,), "greatest": (1.0,)}, "between 0 and 1"),
        ({"least": (0.0,)}, ""),
        ({"threshold": 0.0}, "counts from 0 on"),
        ({"threshold": 0.5, "description": "score"}, "score; counts from 0.5 on"),
    ],
)
def test_facts_of_a_tensor_are_told_in_a_line(facts, told):
    tensor = TensorMetadata(**facts)
    assert metadata_facts(Metadata(inputs=(tensor,)), [tensor]) == [told]


@pytest.mark.parametrize(
    ("labels", "told"),
    [(1, "1 label: 0"), (3, "3 labels: 0, 1, 2"), (4, "4 labels: 0, 1, 2, .."), (9, "9 labels: 0, 1, 2, ..")],
)
def test_the_first_three_labels_are_shown(labels, told):
    file = AssociatedFile("l.txt", kind="axis labels")
    contents = {"l.txt": "\n".join(map(str, range(labels))).encode()}
    said = Metadata(outputs=(TensorMetadata(files=(file,)),), contents=contents, name="n", problem="p")
    assert metadata_facts(said, said.outputs) == [f"{told}; l.txt (axis labels)"]
    document = metadata_document(said)
    assert document is not None and document["outputs"][0]["labels"] == tuple(map(str, range(labels)))
    assert (document["name"], document["problem"], document["inputs"], document["files"]) == ("n", "p", [], [])
    assert list(document["outputs"][0]["files"]) == [
        {"name": "l.txt", "description": "", "kind": "axis labels", "locale": ""}
    ]


@pytest.mark.parametrize("level", [logging.NOTSET, logging.DEBUG])
def test_what_a_driver_logs_is_left_out_while_it_is_judged_and_heard_again_afterwards(level: int) -> None:
    log, heard = logging.getLogger("nnhal.driver"), []

    def results() -> Generator[tuple[TaskResult, int, int], None, None]:
        heard.append(log.isEnabledFor(logging.ERROR))
        yield TaskResult([], Counter(), "d"), 1, 1

    before = log.level
    log.setLevel(level)
    try:
        run_with_progress(results(), "vectors", "vectors on", "", True)
        assert (heard, log.level) == ([level == logging.DEBUG], level)
    finally:
        log.setLevel(before)

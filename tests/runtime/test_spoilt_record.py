"""Rows of the record that hold what nobody wrote there are as if there were none."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.runtime import measured
from nnhal.runtime.measured.background_write import wait_for_writes
from tests.runtime.measured_drivers import X, clock, driver, two  # noqa: F401
from tests.runtime.test_placement_holds import compiled_for

SPOILT = [
    "x",
    "7",
    "[7]",
    "[[7]]",
    "[[[], 7]]",
    '[["{}", [0, 1]], ["{}", []]]',
    '[["{}", [1]], ["{}", [0]]]',
    '[["{}", [0]], ["{}", [0, 1]]]',
    '[["{}", [0]], ["{}", [1]]]',
    '[["{}", [0, 0, 1]]]',
    '[["{}", [99]]]',
    '[["{}", [-1]]]',
    '[["{}", ["a"]]]',
    '[["{}", [[]]]]',
    "[]",
    "null",
    b"\xff",
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("text", SPOILT)
@pytest.mark.parametrize("seconds", [1e-9, 0.0, -1.0, "nan", float("inf"), -float("inf")])
def test_tuned_times_that_are_spoilt_are_as_if_there_were_none(two: None, text: Any, seconds: Any) -> None:  # noqa: F811
    compiled_for("slow", "quick", tune=0.05).close()
    wait_for_writes(10)
    with closing(sqlite3.connect(measured.path())) as c, c:
        (one,) = c.execute("select assignment from tuned limit 1").fetchone()
        identity = one.split('"')[1]
        text = text if isinstance(text, bytes) else text.replace("{}", identity)
        c.execute("insert or replace into tuned select distinct question, devices, ?, ?, 1 from tuned", (text, seconds))
        c.execute("update tuned set seconds = ?", (seconds,))
    with compiled_for("slow", "quick") as compiled:
        np.testing.assert_array_equal(compiled(X), X)
        str(compiled.placement)


@pytest.mark.parametrize("text", ["x", "7", "[[]]", '["a"]', "[99]", "[-1]", "null", b"\xff"])
def test_a_failure_that_is_spoilt_is_as_if_there_were_none(tmp_path: Path, text: Any) -> None:
    driver(tmp_path, "broken", on_prepare="raise RuntimeError('no')")
    compiled_for("broken").close()
    wait_for_writes(10)
    with closing(sqlite3.connect(measured.path())) as c, c:
        c.execute("update failures set operations = ?", (text,))
    with compiled_for("broken") as compiled:
        np.testing.assert_array_equal(compiled(X), X)
        str(compiled.placement)


@pytest.mark.parametrize("content", [7, "x", b"", "null", b"\xff", 1.5])
def test_a_profile_that_is_spoilt_is_as_if_there_were_none(two: None, content: Any) -> None:  # noqa: F811
    with closing(sqlite3.connect(measured.path())) as c, c:
        c.execute("update profile set content = ?", (content,))
    with compiled_for("slow", "quick") as compiled:
        np.testing.assert_array_equal(compiled(X), X)

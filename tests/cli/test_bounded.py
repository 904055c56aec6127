"""Output is at most 24 lines of 100 columns by default, whatever the model: the answer first, partitions, alternatives."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.runtime import discovery, isolation
from nnhal.runtime.measured import record
from nnhal.runtime.measured.families import FAMILIES
from nnhal.runtime.measured.profile import CrossingCost, DeviceProfile, LinearCost, MachineProfile
from nnhal.runtime.placer import identity_of
from tests.cli.test_run import called
from tests.frontends.flat import Writer
from tests.models import doubling, make_model
from tests.runtime.devices import Fake, failing

OPERATIONS = 332
KINDS = "ABS", "EXP", "FLOOR", "NEG"


@pytest.fixture
def large(tmp_path: Path) -> str:
    """A model of 332 operations, of which neighbours take different times."""
    w = Writer()
    tensors = [w.tensor([4]) for _ in range(OPERATIONS + 1)]
    for n, (given, made) in enumerate(pairwise(tensors)):
        w.operator(KINDS[n % 4], [given], [made])
    (tmp_path / "large.tflite").write_bytes(w.file(tensors[:1], tensors[-1:]))
    return str(tmp_path / "large.tflite")


@pytest.fixture
def calibrated() -> None:
    """A profile of litert and the reference: each family takes another time."""
    devices = {}
    for name, unit in (("litert", 1e-6), ("reference", 2e-5)):
        key = isolation.key_of(discovery.load_one(name))
        lines = {"float32": {family: LinearCost(unit * (n + 1), 0.0, 0.0) for n, family in enumerate(FAMILIES)}}
        devices[name] = DeviceProfile(identity_of(key), key.version, lines, {"none": 5e-6})
    crossings = {
        f"{a} > {b}": {"none": CrossingCost(1e-6, 0.0)} for a, b in (("litert", "reference"), ("reference", "litert"))
    }
    record.keep_profile(MachineProfile(record.processor(), 1_700_000_000, devices, crossings))


def bounded(text: str) -> list[str]:
    lines = text.splitlines()
    assert len(lines) <= 24, f"{len(lines)} lines"
    assert max(map(len, lines)) <= 100, max(lines, key=len)
    return lines


VERBS = {
    "run": ["run"],
    "bench": ["bench", "--iterations", "3", "--warmup", "0"],
    "bench compared": ["bench", "--vs", "litert", "--iterations", "3", "--warmup", "0", "--histogram"],
    "placement": ["show", "--placement"],
    "show": ["show"],
    "diff": ["diff", "-d", "litert"],
}


@pytest.mark.sampled(2)
@pytest.mark.usefixtures("calibrated")
@pytest.mark.parametrize("verb", VERBS)
def test_a_calibrated_model_of_332_operations_takes_24_lines(large, capsys, verb):
    word, *options = VERBS[verb]
    bounded(called(capsys, word, large, *options)[0])


@pytest.mark.usefixtures("calibrated")
def test_a_placement_says_what_is_predicted_and_why_nothing_else_was_chosen(large, capsys):
    lines = bounded(called(capsys, "show", large, "--placement")[0])
    head = " ".join(lines[:2])
    assert "large: 332 ops -> 1 partition, 0 device transfers, predicted " in head and "profile of 2023-11-1" in head
    (row,) = [line for line in lines if line.startswith("  0  litert")]
    assert "332 (all)" in row and "83 EXP" in row and "%" in row
    (other,) = [line for line in lines if "all on reference" in line]
    assert "332/332" in other and other.endswith("slower")
    assert not any("--placement" in line for line in lines), "no hint at what was just used"


@pytest.mark.sampled(3)
@pytest.mark.usefixtures("calibrated")
@pytest.mark.parametrize("verb", ["run", "bench", "placement"])
def test_so_does_one_of_many_partitions_of_which_the_slowest_are_shown(large, capsys, verb):
    word, *options = VERBS[verb]
    lines = bounded(called(capsys, word, large, *options, "--rule", "ABS=reference", "--rule", "*=litert")[0])
    assert any("166 partitions, 165 device transfers" in line for line in lines)
    assert any("faster partitions (" in line for line in lines)
    (least, *_) = [line for line in lines if line.startswith("  ") and "a rule places it on reference" in line]
    assert " 1 (#" in least
    everything = called(capsys, word, large, *options, "--rule", "ABS=reference", "--rule", "*=litert", "--verbose")[0]
    assert sum("a rule places it" in line for line in everything.splitlines()) == 166


@pytest.mark.usefixtures("calibrated")
@pytest.mark.parametrize(("asked", "count"), [("#30", 1), ("30", 1), ("exp", 83), ("all", 332)])
def test_one_operation_is_explained_where_asked(large, capsys, asked, count):
    text = called(capsys, "show", large, "--why", asked)[0]
    heads = [line for line in text.splitlines() if not line.startswith(" ")]
    assert len(heads) == count and all(" -> litert (partition 0): predicted " in line for line in heads)
    assert text.count("  reference ") == count and text.count("slower") == count


def test_an_operation_that_the_model_has_not_is_wrong_usage(large, capsys):
    for asked in ("#332", "EXPP"):
        told = called(capsys, "show", large, "--why", asked, code=2)[1]
        assert "no operation fits" in told and told.startswith("error: ")
    assert "hint: did you mean EXP?" in told


def test_what_a_device_declares_is_shown_before_anything_was_measured(large, capsys):
    lines = bounded(called(capsys, "show", large, "--placement")[0])
    assert lines[0].endswith("1 partition, 0 device transfers (declared performance)")
    assert any("declared" in line for line in lines[1:3]) and not any("predicted" in line for line in lines)
    (other,) = [line for line in lines if "all on reference" in line]
    assert "1x" in other and other.endswith("slower (declared)")


def test_a_partition_on_the_only_device_says_what_the_other_rejects():
    model = make_model(lambda b, x: b.add(b.add(x, x), x), (4,))
    takes = nnhal.compile(model, devices=[Fake(takes=lambda n: n == 0), "reference"])
    lines = bounded(str(takes.placement))
    assert lines[0] == "2 ops -> 2 partitions, 1 device transfer (declared performance)"
    assert lines[3].endswith("fake rejects ADD: not this one")
    assert any(line.startswith("  all on fake") and "1/2" in line and "rejects ADD" in line for line in lines)


def test_a_printed_placement_is_as_short_whatever_the_model():
    b = nnhal.Builder()
    x = y = b.input((4,))
    for _ in range(700):
        y = b.add(y, x)
    model = b.finish([x], [y])
    fake = Fake(takes=lambda n: n % 3 != 0)
    with nnhal.compile(model, devices=[fake, "reference"]) as compiled:
        placement = compiled.placement
        lines = bounded(str(placement))
        assert lines[0].startswith(f"700 ops -> {len(placement.steps)} partition")
        assert placement.why(0).startswith("ADD #0 -> reference (partition 0): ")
        html = placement._repr_html_()
        assert html.startswith("<pre>") and "700 ops -&gt; " in html


def test_many_inputs_and_outputs_are_counted(capsys, tmp_path):
    w = Writer()
    inputs, outputs = [w.tensor([4]) for _ in range(60)], [w.tensor([4]) for _ in range(60)]
    for given, made in zip(inputs, outputs, strict=True):
        w.operator("ABS", [given], [made])
    (tmp_path / "many.tflite").write_bytes(w.file(inputs, outputs))
    for words in (["run"], ["show"], ["run", "--top", "3"], ["diff", "-d", "litert"]):
        text = called(capsys, words[0], tmp_path / "many.tflite", *words[1:])[0]
        assert any(line.startswith("  … ") and "--verbose" in line for line in bounded(text))


def test_a_long_reason_is_shortened():
    x = np.ones(4, np.float32)
    model: Any = doubling(4)
    long = "no room " * 200
    compiled = nnhal.compile(model, devices=[Fake(on_prepare=failing(RuntimeError(long)))], fallback="allow")
    compiled(x)
    assert len(bounded(str(compiled.placement))) <= 9

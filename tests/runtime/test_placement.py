"""What a placement shows: steps, reasons, and what fell back while it ran."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import nnhal
from nnhal.runtime.partition import Partition
from nnhal.runtime.placement import WHOLE, ExecutionStats, Placement, StepLayout
from tests.models import doubling, make_model
from tests.runtime.devices import Fake, failing


def compiled() -> nnhal.Compiled:
    model = make_model(lambda b, x: b.add(b.add(x, x), x), (4,))
    return nnhal.compile(model, devices=[Fake(takes=lambda n: n == 0), "reference"])


def test_nothing_that_fell_back_shows_as_nothing():
    placement = compiled().placement
    assert placement.to_dict()["live"] == {"executions": 0, "fell_back": 0, "steps": []}
    assert "fell back" not in str(placement) and not list(placement.live)


def test_what_falls_back_is_counted_by_step_with_the_last_reason():
    live = ExecutionStats(["fake", "reference"])
    live.fell_back(1, "first")
    live.fell_back(0, "second")
    live.fell_back(1, "third")
    assert live.total == 3
    assert live.to_dict()["steps"] == [
        {"step": 0, "device": "fake", "count": 1, "why": "second"},
        {"step": 1, "device": "reference", "count": 2, "why": "third"},
    ]


def test_the_whole_model_is_counted_with_all_its_devices():
    live = ExecutionStats(["fake", "reference", "fake"])
    live.fell_back(WHOLE, "burnt out")
    assert [str(each) for each in live] == ["the whole model fell back once, last: burnt out"]
    assert live.to_dict()["steps"][0]["device"] == "fake, reference"


def test_many_threads_lose_no_count():
    live = ExecutionStats(["fake", "reference"])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: live.fell_back(n % 2, "why"), range(4000)))
    assert [each.count for each in live] == [2000, 2000]


def test_every_placement_of_a_model_shows_what_fell_back_so_far():
    model = compiled()
    before = model.placement
    model._caller.plan.live.fell_back(0, "burnt out")
    model._caller.plan.live.fell_back(0, "burnt out again")
    for placement in (before, model.placement):
        assert str(placement).splitlines()[-1] == "  partition 0 on fake fell back 2 times, last: burnt out again"
        assert json.loads(json.dumps(placement.to_dict()))["live"]["fell_back"] == 2


def test_one_execution_is_told_as_once_and_several_by_their_number():
    live = ExecutionStats(["fake"])
    live.fell_back(0, "hot")
    assert [str(each) for each in live] == ["partition 0 on fake fell back once, last: hot"]
    live.fell_back(0, "hotter")
    assert [str(each) for each in live] == ["partition 0 on fake fell back 2 times, last: hotter"]


def test_executions_are_counted_whatever_becomes_of_them():
    model = compiled()
    x = np.ones(4, np.float32)
    for n in range(3):
        assert model.placement.live.executions == n
        model(x)
    assert model.placement.to_dict()["live"] == {"executions": 3, "fell_back": 0, "steps": []}


def test_a_placement_as_json_has_every_choice():
    placement = compiled().placement
    found = json.loads(json.dumps(placement.to_dict()))
    unknown = {"predicted": None, "took": None}
    assert found["steps"] == [
        {"device": "fake", "operations": [0], **unknown},
        {"device": "reference", "operations": [1], **unknown},
    ]
    assert found["operations"] == [
        {
            "operation": "ADD #0",
            "device": "fake",
            "reason": "declared 0.1x reference time, the fastest",
            "others": {"reference": "declared 1x reference time"},
        },
        {
            "operation": "ADD #1",
            "device": "reference",
            "reason": "the only device that supports it",
            "others": {"fake": "not this one"},
        },
    ]
    assert (found["transfers"], found["events"], found["layouts"]) == (1, [], [])
    assert {label: each["name"] for label, each in found["devices"].items()} == {
        "fake": "fake",
        "reference": "reference",
    }
    assert [c.operation for c in placement] == [0, 1] and placement.transposes == 0
    assert (
        placement.devices() == {"fake": 1, "reference": 1}
        and placement.summary() == "2 partitions, 1 on fake, 1 on reference"
    )


def test_a_placement_as_text_is_a_table_and_what_came_of_it():
    model = doubling(4)
    failing_ = nnhal.compile(model, devices=[Fake(on_prepare=failing(RuntimeError("no room")))], fallback="allow")
    lines = str(failing_.placement).splitlines()
    assert lines[0] == "1 op -> 1 partition, 0 device transfers (declared performance)"
    assert lines[2].split()[:4] == ["0", "reference", "1", "(all)"]
    assert " ".join(lines[-2:]).split()[:7] == ["fake", "failed", "to", "prepare", "operations", "#0:", "device"]
    assert repr(failing_.placement) == "<Placement of 1 operation, 0 transfers, 1 event: 1 partition, 1 on reference>"
    failing_._caller.plan.live.fell_back(0, "hot")
    failing_._caller.plan.live.fell_back(WHOLE, "hot")
    said = "<Placement of 1 operation, 0 transfers, 1 event, 2 executions fell back: 1 partition, 1 on reference>"
    assert repr(failing_.placement) == said


def test_layouts_are_told_with_what_was_left():
    layouts = [StepLayout(1, "npu", "nchw", 1, {}), StepLayout(2, "npu", "nchw", 2, {7: "why", 9: "not"})]
    placement = Placement(Partition((), (), 0), layouts=layouts)
    assert [line.strip() for line in str(placement).splitlines() if "layout" in line] == [
        "partition 1 on npu: layout NCHW, 1 transpose inserted",
        "partition 2 on npu: layout NCHW, 2 transposes inserted; #7 keeps its layout: why; #9 keeps its",
        "layout: not",
    ]
    assert placement.transposes == 3 and placement.keys == {} and placement.live.executions == 0
    assert placement.to_dict()["layouts"][1]["left"] == {"7": "why", "9": "not"}

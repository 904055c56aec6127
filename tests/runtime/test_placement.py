"""What a placement shows: steps, reasons, and what fell back while it ran."""

import json
from concurrent.futures import ThreadPoolExecutor

import nnhal
from nnhal.cli.placement import placement_lines
from nnhal.runtime.placement import WHOLE, Live
from tests.runtime.devices import Fake


def compiled() -> nnhal.Compiled:
    b = nnhal.Builder()
    x = b.input((4,))
    model = b.finish([x], [b.add(b.add(x, x), x)])
    return nnhal.compile(model, devices=[Fake(takes=lambda n: n == 0), "reference"])


def test_nothing_that_fell_back_shows_as_nothing():
    placement = compiled().placement
    assert placement.to_dict()["live"] == {"executions": 0, "fell_back": 0, "steps": []}
    assert "fell back" not in str(placement) and not list(placement.live)


def test_what_falls_back_is_counted_by_step_with_the_last_reason():
    live = Live(["fake", "reference"])
    live.fell_back(1, "first")
    live.fell_back(0, "second")
    live.fell_back(1, "third")
    assert live.total == 3
    assert live.to_dict()["steps"] == [
        {"step": 0, "device": "fake", "count": 1, "why": "second"},
        {"step": 1, "device": "reference", "count": 2, "why": "third"},
    ]


def test_the_whole_model_is_counted_with_all_its_devices():
    live = Live(["fake", "reference", "fake"])
    live.fell_back(WHOLE, "burnt out")
    assert [str(each) for each in live] == ["the whole model fell back once, last: burnt out"]
    assert live.to_dict()["steps"][0]["device"] == "fake, reference"


def test_many_threads_lose_no_count():
    live = Live(["fake", "reference"])
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: live.fell_back(n % 2, "why"), range(4000)))
    assert [each.count for each in live] == [2000, 2000]


def test_every_placement_of_a_model_shows_what_fell_back_so_far():
    model = compiled()
    before = model.placement
    model._caller.plan.live.fell_back(0, "burnt out")
    model._caller.plan.live.fell_back(0, "burnt out again")
    for placement in (before, model.placement):
        assert str(placement).splitlines()[-1] == "step 0 on fake fell back 2 times, last: burnt out again"
        assert list(placement_lines(placement))[-1].strip() == str(placement).splitlines()[-1]
        assert json.loads(json.dumps(placement.to_dict()))["live"]["fell_back"] == 2

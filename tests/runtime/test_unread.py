"""Operations whose results nobody reads: wherever they stand and whoever takes them, the model does what it does without."""

from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import UnsupportedModel
from nnhal.base.levels import V1_0
from nnhal.hal.device import YES
from nnhal.hal.lowering import ask_about
from nnhal.model.graph import Model
from nnhal.model.parts import extract_part, live_operands
from tests.runtime.devices import Fake, failing

X, BEGIN = np.arange(-4, 4, dtype="f4").reshape(1, 8), np.array([0, 2], "i4")
EXPECTED = np.maximum(X, 0), np.maximum(X, 0)[:, 2:6], np.tanh(np.maximum(X, 0)[:, 2:6])
SIZE = np.array([1, 4], "i4")  # SLICE with a begin that is given is the reference's alone
WAYS = {
    "all there are": {},
    "both": {"devices": ["litert", "reference"]},
    "reference": {"devices": "reference"},
    "both, isolated": {"devices": ["litert", "reference"], "isolation": "process"},
}


def unread(place: str, n: int, b: nnhal.Builder, at: nnhal.Tensor, begin: nnhal.Tensor) -> None:
    """What stands at the n-th place of the model and is forgotten."""
    match place:
        case "one at each place":
            b.relu(at)
        case "one at the begin":
            _ = n or b.relu6(at)
        case "one at the end":
            _ = n == 3 and b.relu(at)
        case "one on the other device":
            _ = n < 2 and b.slice(at, begin, SIZE)
        case "a chain from device to device":
            _ = n < 2 and b.relu(b.slice(b.relu(at), begin, SIZE))
        case "a chain that forks":
            piece = b.relu(at)
            b.add(b.tanh(piece), b.relu6(piece))
        case "several results":
            b.split(at, 1, 2, outputs=2)
        case "of the input that only it reads":
            b.cast(begin, out_type="TENSOR_FLOAT32")


PLACES = [
    "one at each place", "one at the begin", "one at the end", "one on the other device", "a chain from device to device",
    "a chain that forks", "several results", "of the input that only it reads",
]  # fmt: skip


def model(place: str, begin_is_read: bool = True) -> Model:
    b = nnhal.Builder()
    x, begin = b.input((1, 8)), b.input((2,), "TENSOR_INT32")
    unread(place, 0, b, x, begin)
    y = b.relu(x)
    unread(place, 1, b, y, begin)
    s = b.slice(y, begin if begin_is_read else BEGIN, SIZE)
    unread(place, 2, b, s, begin)
    z = b.tanh(s)
    unread(place, 3, b, z, begin)
    return b.finish([x, begin], [y, s, z])


def check(compiled: nnhal.Compiled) -> None:
    results = compiled(X, BEGIN)
    for got, expected in zip(results, EXPECTED, strict=True):
        assert np.allclose(got, expected, atol=1e-6)
    assert compiled.placement.events == () and compiled.placement.live.total == 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("place", PLACES)
def test_a_model_with_operations_that_nobody_reads_does_what_it_does_without(place: str, way: str) -> None:
    for begin_is_read in (True, False):
        with nnhal.compile(model(place, begin_is_read), **WAYS[way]) as compiled:  # type: ignore[arg-type]
            check(compiled)
            with compiled.burst() as burst:
                assert np.allclose(burst(X, BEGIN)[2], EXPECTED[2], atol=1e-6)
            rooms = [np.empty_like(e) for e in EXPECTED]
            assert np.allclose(compiled.execute_fenced(X, BEGIN, out=rooms).result()[2], EXPECTED[2], atol=1e-6)


@pytest.mark.parametrize("place", PLACES)
def test_devices_that_take_every_other_operation_get_parts_with_outputs(place: str) -> None:
    for odd in (0, 1):
        check(nnhal.compile(model(place), devices=[Fake(lambda n, odd=odd: n % 2 == odd), "reference"]))  # type: ignore[misc]


@pytest.mark.parametrize("name", ["sample-full-1.0", "sample-full-1.1", "sample-partial", "sample-minimal"])
@pytest.mark.parametrize("place", PLACES)
def test_drivers_of_old_levels_are_asked_about_parts_with_outputs(place: str, name: str) -> None:
    check(nnhal.compile(model(place), devices=[name, "reference"]))


def test_an_operation_that_no_device_takes_is_no_reason_to_fail_where_nobody_reads_it() -> None:
    made = model("one at the end")
    fake = Fake(lambda n: n < 3)
    check(nnhal.compile(made, devices=fake))
    assert len(fake.prepared) == 1
    with pytest.raises(UnsupportedModel, match="no device supports 1 of 4 operations: TANH #2"):
        nnhal.compile(made, devices=Fake(lambda n: n != 2))


def test_what_fails_as_a_whole_runs_on_the_cpu_without_what_nobody_reads() -> None:
    b = nnhal.Builder()
    x = b.input((4,))
    index = b.input((1,), "TENSOR_INT32")
    b.gather(x, 0, index)  # an error where the index lies outside
    y = b.relu(x)
    compiled = nnhal.compile(
        b.finish([x, index], [y]), devices=Fake(on_run=failing(ValueError("no"))), fallback="allow"
    )
    assert compiled(np.array([-1, 0, 1, 2], "f4"), np.array([9], "i4")).tolist() == [0, 0, 1, 2]
    assert compiled.placement.live.total


def test_the_placement_says_so() -> None:
    placement = nnhal.compile(model("one at the end"), devices="reference").placement
    why = "does not run: its results are not used"
    assert placement.why(3) == f"RELU #3: {why}" and " 3 (#0-#2)" in str(placement)
    assert placement.devices() == {"reference": 3} and placement.summary() == "1 partition, 3 on reference"
    assert placement.to_dict()["operations"][3] == {"operation": "RELU #3", "device": "", "reason": why, "others": {}}


def test_a_part_of_operations_that_nobody_reads_gives_what_they_write() -> None:
    made = model("a chain that forks")
    dead = [n for n in range(len(made.main.operations)) if n not in live_operands(made)]
    for part in ([dead[0]], dead[:2], [dead[3]], dead, [*dead, *live_operands(made)][:6]):
        found = extract_part(made, part)
        assert found.outputs and nnhal.validate(found.model)
    assert extract_part(made, [dead[3]]).outputs == made.main.operations[dead[3]].outputs


def test_a_driver_of_a_level_is_asked_about_what_nobody_reads() -> None:
    asked: list[Any] = []

    def ask(part: Model) -> list[Any]:
        asked.append(nnhal.validate(part))
        return [YES] * len(part.main.operations)

    b = nnhal.Builder()
    x = b.input((1, 8))
    y = b.abs(x)  # of level 1.2
    b.relu(y)
    verdicts = ask_about(b.finish([x], [y]), V1_0, ask)
    assert [v.ok for v in verdicts] == [False, True] and asked

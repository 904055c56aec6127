"""What a compiled model holds in memory, as its drivers tell it: in process, isolated, step by step, checked."""

from types import SimpleNamespace

import numpy as np
import pytest

import nnhal
from nnhal.base.errors import ContractBroken, DriverFailed
from nnhal.hal.answers import checked_memory_use
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.memory import MemoryUse, combined_use
from nnhal.runtime import discovery
from nnhal.runtime.model_memory import ModelMemory, StepMemory, memory_of
from nnhal.runtime.placement import WHOLE
from tests.hal.devices import LITERT, device_of
from tests.models import make_model
from tests.runtime.devices import Fake, failing, for_nothing

KINDS = "none", "process"
X = np.ones((1, 512), np.float32)
NONSENSE = [
    None,
    3,
    (1, 2, 3, 4),
    MemoryUse(-1),
    MemoryUse(working=1.5),
    MemoryUse(True),
    MemoryUse(2**70),
    MemoryUse("1"),
]


def dense(units: int = 1024) -> nnhal.Model:
    """Two layers: 512 to `units` to 512."""
    b = nnhal.Builder()
    x = b.input((1, 512))
    first = b.fully_connected(x, np.ones((units, 512), np.float32), np.zeros(units, np.float32))
    return b.finish([x], [b.fully_connected(first, np.ones((512, units), np.float32), np.zeros(512, np.float32))])


WEIGHTS = 4 * (2 * 1024 * 512 + 1024 + 512)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_reads_constants_where_they_lie_and_holds_intermediates_of_each_execution(kind):
    compiled = nnhal.compile(dense(), devices="reference", isolation=kind)
    (step,) = compiled.memory.steps
    activations = 2 * 4
    assert (step.step, step.device) == (0, "reference")
    assert step.use == MemoryUse(0, WEIGHTS + activations, 0, 4 * (1024 + 512))
    assert compiled.memory.total == step.use


def test_a_constant_that_several_operations_read_counts_once():
    b = nnhal.Builder()
    x, w = b.input((64,)), b.constant(np.ones(64, np.float32))
    compiled = nnhal.compile(b.finish([x], [b.mul(b.add(x, w), w)]), devices="reference")
    assert compiled.memory.total.weights_in_place == 64 * 4 + 2 * 4


@pytest.mark.parametrize(("shape", "known"), [((2, 8), 2 * 8 * 4), ((0, 8), None)])
def test_intermediates_of_open_shapes_are_not_known(shape, known):
    compiled = nnhal.compile(make_model(lambda b, x: b.relu(x), shape), devices="reference")
    assert compiled.memory.total.per_execution == known


@LITERT
@pytest.mark.parametrize("kind", KINDS)
def test_litert_tells_what_it_maps_and_does_not_know_the_rest(kind):
    compiled = nnhal.compile(dense(), devices="litert", isolation=kind)
    compiled(X)
    assert compiled.memory.total == MemoryUse(None, WEIGHTS, None, None)


@LITERT
def test_litert_maps_no_constants_that_are_few():
    assert nnhal.compile(dense(16), devices="litert").memory.total.weights_in_place == 0


@LITERT
def test_of_open_shapes_all_that_are_kept_ready_count_and_their_constants_once():
    b = nnhal.Builder()
    x = b.input((0, 512))
    y = b.fully_connected(x, np.ones((1024, 512), np.float32), np.zeros(1024, np.float32))
    compiled = nnhal.compile(b.finish([x], [y]), devices="litert")
    assert compiled.memory.total.weights_in_place == 0  # nothing is ready
    for rows in (1, 2):
        compiled(np.ones((rows, 512), np.float32))
    assert compiled.memory.total.weights_in_place == 4 * (1024 * 512 + 1024)


def test_a_driver_that_says_nothing_knows_nothing():
    for device in (Fake(), discovery.load_one("sample-full-1.1")):
        assert nnhal.compile(dense(16), devices=[device]).memory.total == MemoryUse()


def test_what_is_between_steps_is_the_runtimes(monkeypatch):
    for_nothing(monkeypatch)
    model = make_model(lambda b, x: b.neg(b.abs(x)), (300, 300))
    compiled = nnhal.compile(model, devices=[Fake(lambda n: n == 0), "reference"])
    assert compiled.memory.between == 0
    compiled(np.ones((300, 300), np.float32))
    assert compiled.memory.between == 300 * 300 * 4
    assert [step.device for step in compiled.memory.steps] == ["fake", "reference"]
    assert compiled.memory.total == MemoryUse()  # one of them does not know


def test_what_several_hold_is_added_up_but_an_execution_is_in_one_at_a_time():
    assert combined_use([MemoryUse(1, 2, None, 4), MemoryUse(10, 20, 30, 3)]) == MemoryUse(11, 22, None, 4)
    assert combined_use([]) == MemoryUse(0, 0, 0, 0)


def test_what_a_model_holds_reads_as_a_line_a_step_and_in_short_as_the_total():
    steps = StepMemory(0, "one", MemoryUse(1, 2, None, 4)), StepMemory(WHOLE, "two", MemoryUse(10, 20, 30, 3))
    memory = ModelMemory(steps, 77)
    assert str(memory).splitlines() == [
        "step 0 on one: weights_copied 1, weights_in_place 2, working not known, per_execution 4",
        "the whole model on two: weights_copied 10, weights_in_place 20, working 30, per_execution 3",
        "between partitions: 77 bytes",
    ]
    total = "weights_copied 11, weights_in_place 22, working not known, per_execution 4"
    assert repr(memory) == f"<ModelMemory of 2 steps: {total}>"
    assert repr(ModelMemory(steps[:1], 0)).startswith("<ModelMemory of 1 step: ")
    document = memory.to_dict()
    assert document["between"] == 77 and document["total"]["weights_copied"] == 11
    assert [(s["step"], s["device"], s["weights_in_place"]) for s in document["steps"]] == [
        (0, "one", 2),
        (WHOLE, "two", 20),
    ]


def test_steps_that_fell_back_come_in_order_and_what_one_raises_names_its_device():
    class Cpu(Fake):
        name = "spare"

    def prepared(use):
        made = checked_prepared(Cpu(), dense(16), Hints())
        made.memory = lambda: use
        return SimpleNamespace(device=Cpu(), prepared=made)

    fallbacks = {2: prepared(MemoryUse(2)), WHOLE: prepared(MemoryUse(0)), 1: prepared(MemoryUse(1))}
    caller = SimpleNamespace(lines=[], fallbacks=SimpleNamespace(made=lambda: fallbacks), kept=lambda: 5)
    found = memory_of(caller)
    assert [(s.step, s.device, s.use.weights_copied) for s in found.steps] == [
        (WHOLE, "spare", 0),
        (1, "spare", 1),
        (2, "spare", 2),
    ]
    assert found.between == 5
    fallbacks[1].prepared.memory = lambda: 1 / 0
    with pytest.raises(DriverFailed, match="device spare: memory"):
        memory_of(caller)


def test_a_step_that_fell_back_counts_also_on_the_cpu():
    compiled = nnhal.compile(dense(16), devices=[Fake(on_run=failing(RuntimeError("broken")))], fallback="allow")
    assert len(compiled.memory.steps) == 1
    compiled(X)
    assert [(each.step, each.device) for each in compiled.memory.steps] == [(0, "fake"), (WHOLE, "reference")]


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_figures_that_cannot_be_are_the_drivers_fault(nonsense):
    prepared = checked_prepared(Fake(), dense(16), Hints())
    prepared.memory = lambda: nonsense
    with pytest.raises(ContractBroken, match=r"device fake: memory\(\) gave .*must"):
        checked_memory_use(prepared, "device fake")


def test_what_it_raises_names_the_device():
    compiled = nnhal.compile(dense(16), devices=[Fake()])
    compiled._caller.lines[0].prepared.memory = lambda: 1 / 0
    with pytest.raises(DriverFailed, match=r"device fake: memory\(\) raised ZeroDivisionError"):
        _ = compiled.memory


def test_isolated_it_is_asked_anew_and_not_after_the_end():
    compiled = nnhal.compile(dense(16), devices=[device_of("isolated null")])
    assert compiled.memory.total == MemoryUse(0, 0, 512 * 4, 0)
    assert compiled.memory.to_dict() == {
        "steps": [{"step": 0, "device": "null", **compiled.memory.total._asdict()}],
        "total": {"weights_copied": 0, "weights_in_place": 0, "working": 2048, "per_execution": 0},
        "between": 0,
    }
    compiled.close()
    with pytest.raises(nnhal.Closed):
        _ = compiled.memory

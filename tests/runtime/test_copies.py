"""What travels to other processes and what is copied: models and placements do; what holds an engine says what to do."""

import copy
import dataclasses
import multiprocessing
import pickle  # noqa: TID251 (as applications do)
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.memory import Memory
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from tests.models import make_model
from tests.runtime.devices import Fake, failing
from tests.runtime.graphs import counter, sums

WEIGHTS = np.arange(64 * 64, dtype="f4").reshape(64, 64) / 4096  # more than lies in the model itself
X = np.linspace(-1, 1, 64, dtype="f4").reshape(1, 64)
EXPECTED = X @ WEIGHTS.T


def dense() -> Model:
    return make_model(lambda b, x: b.fully_connected(x, WEIGHTS, np.zeros(64, "f4"), name="y"), name="dense", x=(1, 64))


def computed(model: Model) -> np.ndarray:
    with nnhal.compile(model, devices="reference") as compiled:
        return np.asarray(compiled(X))


def copies(model: Model) -> list[Model]:
    found = [pickle.loads(pickle.dumps(model, p)) for p in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    return [*found, copy.copy(model), copy.deepcopy(model)]


@pytest.mark.parametrize("used", [False, True])
def test_a_model_that_was_pickled_or_copied_computes_the_same(used: bool) -> None:
    model = dense()
    if used:
        computed(model)
    for other in copies(model):
        assert other.name == "dense" and np.allclose(computed(other), EXPECTED, atol=1e-5)
        assert nnhal.level_of(other) == nnhal.level_of(model)


def test_what_was_pickled_lies_in_sealed_memory_again_and_carries_no_derived_facts() -> None:
    model = dense()
    nnhal.validate(model)
    data = pickle.dumps(model)
    assert len(data) < WEIGHTS.nbytes + 4000
    other = pickle.loads(data)
    assert other._memo == {} and [pool.sealed for pool in other.pools] == [True]
    (weights,) = (o for o in other.main.operands if o.dimensions == (64, 64))
    assert np.array_equal(other.constant(weights), WEIGHTS) and not other.constant(weights).flags.writeable


def test_a_memory_of_the_callers_travels_as_the_bytes_it_has() -> None:
    b = ModelBuilder()
    memory = Memory.from_array(WEIGHTS)
    x, y = (b.operand(3, (1, 64)) for _ in range(2))
    w = b.reference(3, (64, 64), b.add_pool(memory), 0, WEIGHTS.nbytes)
    b.operation("FULLY_CONNECTED", [x, w, b.constant(3, np.zeros(64, "f4")), b.constant(1, 0)], [y])
    model = b.finish([x], [y])
    other = pickle.loads(pickle.dumps(model))
    memory.writable()[:] = 0
    assert np.allclose(computed(other), EXPECTED, atol=1e-5)


def test_states_travel() -> None:
    session = nnhal.compile(pickle.loads(pickle.dumps(counter())), devices="reference").stream()
    one = np.ones(4, "f4")
    assert [session(one)[0], session(one)[0]] == [2, 4]


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_model_goes_to_the_processes_of_a_pool(method: str) -> None:
    with multiprocessing.get_context(method).Pool(2) as pool:
        for result in pool.map(computed, [dense(), dense()]):
            assert np.allclose(result, EXPECTED, atol=1e-5)
        (placement,) = pool.map(placed, [dense()])
    assert placement.devices() == {"reference": 1}


def placed(model: Model) -> nnhal.Placement:
    return nnhal.compile(model, devices="reference").placement


def test_a_model_as_a_dictionary() -> None:
    model = sums()
    nnhal.validate(model)
    assert dataclasses.asdict(model)["name"] == "sums"


def test_a_placement_that_was_pickled_or_copied_says_the_same_and_counts_for_itself() -> None:
    compiled = nnhal.compile(sums(), devices=Fake(on_run=failing(ValueError("no"))), fallback="allow")
    one = np.ones(4, "f4")
    compiled(one, one)
    placement = compiled.placement
    others = [pickle.loads(pickle.dumps(placement)), copy.deepcopy(placement)]
    said = str(placement), repr(placement), placement.to_dict()
    compiled(one, one)
    for other in others:
        assert (str(other), repr(other), other.to_dict()) == said and other.live.total == 1
        other.live.ran()
        other.live.fell_back(0, "again")
        assert other.live.executions == 2 and other.live.total == 2


def holders() -> dict[str, Any]:
    compiled = nnhal.compile(sums(), devices="reference")
    one = np.ones(4, "f4")
    b = nnhal.Builder()
    return {
        "Compiled": compiled,
        "Binding": compiled.bind(one, one),
        "CompiledBurst": compiled.burst(),
        "Execution": compiled.submit(one, one),
        "Fenced": compiled.execute_fenced(one, one),
        "Allocation": nnhal.allocate([(compiled, "input", 0)]),
        "Stream": nnhal.compile(counter(), devices="reference").stream(),
        "Memory": nnhal.Memory.allocate(8),
        "Fence": nnhal.fence_pair()[0],
        "Builder": b,
    }


@pytest.mark.parametrize("way", [pickle.dumps, copy.copy, copy.deepcopy], ids=["pickle", "copy", "deepcopy"])
def test_what_holds_something_of_this_process_says_what_to_do_instead(way: Any) -> None:
    for name, each in holders().items():
        with pytest.raises(nnhal.BadState, match=rf"^{name}: cannot be pickled or copied; .*(gets|gives|sent|copies)"):
            way(each)


ERRORS = [
    nnhal.InvalidModel("text"),
    nnhal.OutputInsufficientSize("text", [(1, 2), None]),
    nnhal.MissedDeadline("text", persistent=True),
    nnhal.ResourceExhausted("text", persistent=True),
    nnhal.LoopTimeout("text"),
    nnhal.UnsupportedModel("text"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_errors_come_back_from_other_processes_as_they_are(error: nnhal.NnhalError) -> None:
    other = pickle.loads(pickle.dumps(error))
    assert type(other) is type(error) and str(other) == "text"
    assert (other.status, other.code, vars(other)) == (error.status, error.code, vars(error))

"""The judge is judged: drivers and vectors that must fail, each way of failing, in each way to execute."""

import ctypes
import json
from types import SimpleNamespace

import numpy as np
import pytest

from nnhal import Builder
from nnhal.base.codes import OperandType as Type
from nnhal.base.errors import (
    Cancelled,
    ContractBroken,
    DeadObject,
    DeviceUnavailable,
    InvalidArgument,
    OperationFailed,
    UnsupportedModel,
)
from nnhal.conformance.execution_paths import WAYS
from nnhal.conformance.selection import Selection, planned
from nnhal.conformance.suite import Outcome, read_only, run_vector, variants
from nnhal.conformance.vectors import index
from nnhal.hal.background import FencedExecution
from nnhal.hal.device import Device, Verdict
from nnhal.hal.host import HostBuffer
from nnhal.hal.wrappers import Wrapper
from nnhal.model.builder import ModelBuilder
from nnhal.runtime import discovery
from tests.conformance.test_suite import expected, vector
from tests.models import make_model


def doing(**stages) -> Device:
    """The reference, with some of what it is asked done otherwise: supports, prepare, run, close, burst, ..."""

    class Otherwise(Wrapper):
        closed = 0

        def supports(self, model):
            return stages["supports"](model) if "supports" in stages else super().supports(model)

        def prepare(self, model, hints):
            if "prepare" in stages:
                return stages["prepare"](model, hints)
            prepared = super().prepare(model, hints)
            inner_close = prepared.close

            def close():
                self.closed += 1
                inner_close()

            prepared.close = close
            for name in stages.keys() - {"supports"}:
                setattr(prepared, name, stages[name])
            return prepared

    return Otherwise(discovery.cpu())


def raising(error):
    def act(*_, **__):
        raise error

    return act


def judged(device, **named) -> Outcome:
    way = named.pop("way", "plain")
    return run_vector(vector(**named), device, way=way)


# ------------------------------------------------------------------------------------------------- errors, by the stage


@pytest.mark.parametrize("must_fail", [False, True])
@pytest.mark.parametrize("stage", ["supports", "prepare", "run"])
@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("x"), "DriverFailed: "),
        (ZeroDivisionError(), "DriverFailed: "),
        (ContractBroken("no"), "ContractBroken: "),
        (DeviceUnavailable("gone"), "DeviceUnavailable: "),
        (Cancelled("by nobody"), "Cancelled: "),
    ],
)
def test_an_error_that_is_no_answer_fails_a_vector_whatever_it_must_do(stage, error, said, must_fail):
    found = judged(doing(**{stage: raising(error)}), expect_failure=must_fail)
    assert found.verdict == "failed"
    unasked = isinstance(error, Cancelled) and stage == "run"  # of an execution that nobody cancelled
    assert found.reason.startswith("ContractBroken: " if unasked else said)


@pytest.mark.parametrize("stage", ["supports", "prepare", "run"])
@pytest.mark.parametrize("error", [OperationFailed("no"), InvalidArgument("no"), UnsupportedModel("no")])
def test_an_error_of_the_hal_passes_a_vector_that_must_fail_and_fails_any_other(stage, error):
    device = doing(**{stage: raising(error)})
    assert judged(device, expect_failure=True).verdict == "passed"
    found = judged(device)
    assert (found.verdict, "no" in found.reason) == ("failed", True)


@pytest.mark.parametrize("must_fail", [False, True])
@pytest.mark.parametrize("stage", ["supports", "prepare", "run"])
def test_a_dead_process_is_a_crash_that_names_the_stage_whatever_the_vector_must_do(stage, must_fail):
    error = DeadObject("device x: the driver process was killed by SIGSEGV")
    found = judged(doing(**{stage: raising(error)}), expect_failure=must_fail)
    assert found.verdict == "crashed"
    assert found.reason == f"device reference: {stage}(): the driver process was killed by SIGSEGV"


@pytest.mark.parametrize("must_fail", [False, True])
@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([], "supports() gave 0 verdicts, must be 1, one an operation"),
        ([True, True], "supports() gave 2 verdicts, must be 1, one an operation"),
        (None, "supports() gave None, must be 1 verdicts"),
        (["yes"], "supports() gave 'yes' for operation 0, must be a Verdict or a bool"),
    ],
)
def test_verdicts_that_are_none_fail_in_the_words_of_the_runtime(answer, said, must_fail):
    found = judged(doing(supports=lambda model: answer), expect_failure=must_fail)
    assert found.verdict == "failed" and found.reason.startswith("ContractBroken: device reference: ")
    assert said in found.reason


def test_what_is_prepared_must_be_something_prepared():
    for must_fail in (False, True):
        found = judged(doing(prepare=lambda model, hints: None), expect_failure=must_fail)
        assert found.verdict == "failed" and "prepare() gave None, must give a Prepared" in found.reason


def test_a_no_is_unsupported_with_its_reason_and_nothing_is_prepared():
    device = doing(supports=lambda model: [Verdict(False, "too large")], prepare=raising(AssertionError()))
    for must_fail in (False, True):
        found = judged(device, expect_failure=must_fail)
        assert (found.verdict, found.reason) == ("unsupported", "too large")


def test_one_no_among_several_verdicts_is_unsupported():
    model = make_model(lambda b, x: b.add(b.add(x, x), x), (2,))
    several = vector()
    several.model = lambda dynamic, signed: model
    device = doing(supports=lambda model: [Verdict(True), Verdict(False, "the second")])
    assert run_vector(several, device).reason == "the second"


# ------------------------------------------------------------------------------------------------ outputs, by the way


def giving(*results):
    def run(request, control):
        for place, result in results:
            request.write(place, result)

    return run


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("results", "said"),
    [
        ([(0, np.float32([2, 4.1]))], "output 0: 1 of 2 elements differ, the first at [1]: 4.1, must be 4"),
        ([(0, np.float32([2, np.nan]))], "output 0: 1 of 2 elements differ, the first at [1]: nan, must be 4"),
        ([], "ContractBroken: "),
        ([(0, np.float32([2, 4, 6]))], "ContractBroken: "),
        ([(0, np.float64([2, 4]))], "ContractBroken: "),
        ([(0, np.float32([2, 4])), (0, np.float32([2, 4]))], "ContractBroken: "),
    ],
)
def test_wrong_outputs_fail_in_every_way_to_execute(way, results, said):
    found = judged(doing(run=giving(*results)), way=way)
    assert found.verdict == "failed" and found.reason.startswith(said)
    assert judged(doing(run=giving((0, np.float32([2, 4])))), way=way).verdict == "passed"


@pytest.mark.parametrize("way", WAYS)
def test_a_vector_that_must_fail_and_runs_fails_in_every_way(way):
    assert judged(doing(), way=way, expect_failure=True).reason == "ran, must end in an error"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("error", [ValueError("oops"), KeyError("conv_weights")])
def test_an_exception_of_the_drivers_own_fails_in_every_way(way, error):
    for must_fail in (False, True):
        found = judged(doing(run=raising(error)), way=way, expect_failure=must_fail)
        assert found.verdict == "failed" and str(error) in found.reason and "DriverFailed" in found.reason


def twice(request, control, notify):
    request.execute(giving((0, np.float32([2, 4]))), control)
    notify(None, None)
    notify(None, None)


@pytest.mark.parametrize("must_fail", [False, True])
@pytest.mark.parametrize(
    ("way", "method", "act"),
    [
        ("callback", "execute", twice),
        ("callback", "execute", raising(ValueError("oops"))),
        ("burst", "burst", raising(ValueError("oops"))),
        ("fenced", "execute_fenced", raising(ValueError("oops"))),
    ],
)
def test_what_only_one_way_asks_can_fail_there_whatever_the_vector_must_do(way, method, act, must_fail):
    device = doing(**{method: act})
    assert judged(device, way=way, expect_failure=must_fail).verdict == "failed"
    assert judged(device).verdict == "passed"


def test_the_second_execution_of_a_burst_counts():
    runs = []

    def run(request, control):
        runs.append(request)
        request.write(0, np.float32([2, 4]) * len(runs))

    assert judged(doing(run=run), way="burst").reason.startswith("output 0: 2 of 2 elements differ")
    assert len(runs) == 2


def test_an_output_that_is_ignored_may_be_anything_and_those_behind_it_may_not():
    model = make_model(lambda b, x: [b.add(x, x), b.mul(x, x)], (2,))
    v = vector()
    v.model = lambda dynamic, signed: model
    for first, second, wanted in (([9, 9], [1, 4], "passed"), ([2, 4], [1, 5], "failed")):
        v.expected = lambda signed: [expected((2, 4), ignored=True), expected((1, 4))]
        device = doing(run=giving((0, np.float32(first)), (1, np.float32(second))))
        assert run_vector(v, device).verdict == wanted


def test_a_result_larger_than_its_room_is_said_with_its_shape():
    b = ModelBuilder()
    dimensions = b.operand(Type.TENSOR_INT32, (1,))
    y = b.operand(Type.TENSOR_FLOAT32, (0,))
    b.operation("FILL", [dimensions, b.constant(Type.FLOAT32, 1.0)], [y])
    v, model = vector(), b.finish([dimensions], [y])
    v.model, v.inputs = lambda dynamic, signed: model, lambda signed: [np.int32([2])]
    device = doing(run=giving((0, np.float32([1, 2, 3, 4]))))
    found = run_vector(v, device, way="burst")
    assert (found.verdict, found.reason) == ("failed", "the buffers of outputs [0] are too small for shapes [(4,)]"), (
        found
    )


def test_driver_memory_counts_with_what_the_driver_keeps_in_it():
    class Lying(HostBuffer):
        said: tuple[int, ...] | None = (2,)

        def array(self):
            return super().array() + 1 if self.said else super().array()

        @property
        def shape(self):
            return self.said

        @shape.setter
        def shape(self, value):
            pass

    def lying(desc, roles):
        return Lying(desc, roles) if roles[0].output else HostBuffer(desc, roles)

    device = doing()
    device.allocate = lying
    assert judged(device, way="memory").reason.startswith("output 0: 2 of 2 elements differ, the first at [0]: 3, must")
    Lying.said = None
    for must_fail in (False, True):
        found = judged(device, way="memory", expect_failure=must_fail)
        assert "ContractBroken: driver memory of output 0 has no contents after the execution" in found.reason


def test_a_fenced_execution_that_ended_before_its_launch_came_back_tells_its_error():
    def ended(request, control, wait_for, after=None):
        execution = FencedExecution(None)
        execution.finish(OperationFailed("at once"), None)
        return execution

    found = judged(doing(execute_fenced=ended), way="fenced")
    assert (found.verdict, "at once" in found.reason) == ("failed", True)


def test_a_share_is_the_same_vectors_always_and_a_flag_those_that_have_it(vectors):
    def ids(**named):
        return {i.id for task in planned(Selection(vectors, rerun=False, **named)) for i in task.items}

    assert ids(share=0.02) < ids(share=0.1) and abs(len(ids(share=0.1)) / 7072 - 0.1) < 0.02
    flagged = {id for id, entry in index(vectors).items() if "zeroSizedOutput" in entry["flags"]}
    assert ids(flag="zeroSizedOutput") == flagged and 0 < len(flagged) < 7072


def test_an_index_and_zips_that_do_not_match_are_refused(vectors, tmp_path):
    entries = json.loads((vectors / "index.json").read_text())["tests"]
    for archive in vectors.glob("*.zip"):
        (tmp_path / archive.name).symlink_to(archive)
    for changed in (entries[500:], [*entries, entries[0] | {"id": "V1_0/nowhere/nothing"}]):
        (tmp_path / "index.json").write_text(json.dumps({"tests": changed}))
        with pytest.raises(InvalidArgument, match=r"must be both in index\.json and in V1_"):
            planned(Selection(tmp_path))


# ----------------------------------------------------------------------------------------------- what the suite itself does


@pytest.mark.parametrize(
    "stages", [{}, {"run": raising(OperationFailed("no"))}, {"run": raising(ValueError())}, {"run": giving()}]
)
def test_what_was_prepared_is_closed_once_however_it_went(stages):
    device = doing(**stages)
    judged(device)
    assert device.closed == 1


def test_a_close_that_raises_is_not_the_vectors():
    assert judged(doing(close=raising(ValueError("late")))).verdict == "passed"


def test_stages_are_told_in_order_as_far_as_they_come():
    def told(device):
        stages = []
        run_vector(vector(), device, at=stages.append)
        return stages

    assert told(doing()) == ["build", "supports", "prepare", "run", "close"]
    assert told(doing(supports=lambda model: [False])) == ["build", "supports"]
    assert told(doing(run=raising(OperationFailed("no")))) == ["build", "supports", "prepare", "run", "close"]


def test_a_variant_makes_model_inputs_and_expected_outputs_so():
    asked = []
    v = vector()
    model, inputs, wanted = v.model, v.inputs, v.expected
    v.model = lambda dynamic, signed: asked.append(("model", dynamic, signed)) or model(dynamic, signed)
    v.inputs = lambda signed: asked.append(("inputs", signed)) or inputs(signed)
    v.expected = lambda signed: asked.append(("expected", signed)) or wanted(signed)
    for variant, dynamic, signed in (("", False, False), ("dynamic", True, False), ("signed", False, True)):
        asked.clear()
        assert run_vector(v, discovery.cpu(), variant).variant == variant
        assert set(asked) == {("model", dynamic, signed), ("inputs", signed), ("expected", signed)}


def test_flags_say_which_variants_there_are():
    assert list(variants([])) == [""]
    assert list(variants(["dynamicOutputShape", "float16"])) == ["", "dynamic"]
    assert list(variants(["quantCoupling"])) == ["", "signed"]
    assert list(variants(["quantCoupling", "dynamicOutputShape"])) == ["", "dynamic", "signed"]


def test_frequencies_are_compared_where_the_vector_says_so():
    v = vector()
    v.multinomial = 0.1
    logits = np.float32([[0, np.log(3)]])
    b = Builder()
    x, seeds = b.input((1, 2)), b.constant(np.int32([1, 2]))
    model = b.finish([x], [b.random_multinomial(x, 4, seeds)])
    v.model, v.inputs = lambda dynamic, signed: model, lambda signed: [logits]
    for samples, wanted in (([[1, 1, 0, 1]], "passed"), ([[1, 0, 0, 1]], "failed"), ([[1, 1, 7, 1]], "failed")):
        v.expected = lambda signed: [SimpleNamespace(shape=(1, 4), type=4, ignored=False, data=None)]
        assert run_vector(v, doing(run=giving((0, np.int32(samples))))).verdict == wanted, samples


def test_inputs_are_copies_that_a_pointer_cannot_write_to():
    blob = bytearray(np.float32([1, 2, 3]).tobytes())
    mine = np.frombuffer(blob, np.float32)
    (copy, nothing, empty), scalar = read_only([mine, None, np.zeros((0, 3), np.int8)]), read_only([np.int32(5)])[0]
    blob[:] = bytes(len(blob))
    assert copy.tolist() == [1, 2, 3] and nothing is None and empty.shape == (0, 3) and scalar == 5
    assert not copy.flags.writeable
    with open("/proc/self/maps") as maps:
        spans = [line.split() for line in maps]
    at = copy.ctypes.data
    rights = [f[1] for f in spans if int(f[0].split("-")[0], 16) <= at < int(f[0].split("-")[1], 16)]
    assert rights and rights[0].startswith("r-")


def test_a_driver_that_writes_to_constants_by_pointer_spoils_its_own_vector_alone():
    def model(*_):
        return make_model(lambda b, x: b.add(x, b.constant(np.float32([1, 2]))), (2,))

    def scribble(model):
        constant = next(model.constant(o) for o in model.main.operands if o.lifetime.name.startswith("CONSTANT"))
        ctypes.memset(constant.ctypes.data, 0, constant.nbytes)
        return [True]

    v = vector()
    v.model = lambda dynamic, signed: model()
    assert run_vector(v, discovery.cpu()).verdict == "passed"
    run_vector(v, doing(supports=scribble))
    assert run_vector(v, discovery.cpu()).verdict == "passed"


def test_a_plan_has_every_vector_that_is_selected_once_and_no_other(vectors):
    entries = {
        item.id: item for task in planned(Selection(vectors, operations=frozenset({"TANH"}))) for item in task.items
    }
    assert entries and all(item.primary == "TANH" for item in entries.values())
    everything = [(i.id, i.variant) for task in planned(Selection(vectors)) for i in task.items]
    assert len(everything) == len(set(everything)) == 7072 + 6426 + 656
    assert len([1 for task in planned(Selection(vectors, rerun=False)) for _ in task.items]) == 7072
    named = [i for task in planned(Selection(vectors, pattern="^V1_1/.*relaxed$", rerun=False)) for i in task.items]
    assert named and all(i.id.startswith("V1_1/") and i.id.endswith("relaxed") for i in named)
    assert not planned(Selection(vectors, pattern="^relaxed$"))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
def test_a_time_out_is_a_time(seconds, vectors):
    with pytest.raises(InvalidArgument, match="timeout"):
        Selection(vectors, timeout=seconds)

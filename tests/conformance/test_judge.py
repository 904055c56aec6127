"""The judge's own limits: re-runs, relaxations, the room of sums, what a NaN may become."""

import numpy as np
import pytest

from nnhal.base.errors import OperationFailed
from nnhal.base.operands import Value
from nnhal.conformance.differential import agreeing, compare_outputs, kernel_outputs, model_of, with_other_values
from nnhal.conformance.draw import Cell, cells, draw
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import RELAXATIONS, Hints
from nnhal.ops import OPS
from nnhal.runtime import discovery
from tests.comparing import compare_device, run_both
from tests.conformance.test_differential import F32, Wrong, added, scalar, tensor
from tests.conformance.test_differential import call as called

MOST = np.finfo(np.float32).max


def outcome(device, call):
    """What `one` says of a device on a call."""
    mine, theirs = (checked_prepared(d, model_of(call), Hints()) for d in (discovery.cpu(), device))
    return run_both(device, mine, theirs, call)


def test_an_execution_that_fails_and_must_run_differs():
    class Failing(Wrong):
        def prepare(self, model, hints):
            prepared = super().prepare(model, hints)

            def run(request, control):
                raise OperationFailed("no")

            prepared.run = run
            return prepared

    found = outcome(Failing(None), added([1], [3]))
    assert (found.outcome, found.reason) == ("differs", "fails: device wrong: no")


def test_a_driver_that_breaks_differs_even_where_the_reference_fails_too(monkeypatch):
    def failing(request, control):
        raise OperationFailed("no")

    call = added([1], [3])
    for breaks in (lambda x: 1 // 0, lambda x: x[:0]):
        mine, theirs = (checked_prepared(d, model_of(call), Hints()) for d in (discovery.cpu(), Wrong(breaks)))
        monkeypatch.setattr(mine, "_run", failing)
        assert run_both(discovery.cpu(), mine, theirs, call).outcome == "differs"


def test_a_device_is_granted_the_relaxations_that_it_states_and_no_others():
    device = Wrong(lambda x: np.clip(x, -MOST, MOST))  # infinite results become the greatest
    call = added([3e38], [3e38])
    for stated, wanted in ((), "differs"), (("subnormals", "float16"), "differs"), (("infinities",), "agrees"):
        device.relaxations = stated
        assert outcome(device, call).outcome == wanted, stated
    flushing = Wrong(np.zeros_like)
    tiny = added([1e-5], [1e-5])
    flushing.relaxations = tuple(RELAXATIONS)
    assert outcome(flushing, tiny).outcome == "differs"  # 2e-5 is no subnormal number


def test_the_greatest_number_stands_for_infinity_and_for_nothing_else():
    for wanted in (4.0, np.nan, 0.0):
        assert compare_outputs(added([1], [3]), [np.float32([wanted])], [np.float32([MOST])], ["infinities"])


@pytest.mark.parametrize(("activation", "bounds"), [(0, []), (1, [0]), (2, [-1, 1]), (3, [0, 6])])
def test_nan_may_become_the_bounds_of_its_activation_alone(activation, bounds):
    call = added([np.nan], [3], activation=activation)
    wanted = [np.float32([np.nan])]
    fine = [x for x in (-1, 0, 1, 6, 3) if compare_outputs(call, wanted, [np.float32([x])], ["clipped_nan"]) == ""]
    assert fine == bounds
    assert all(compare_outputs(call, wanted, [np.float32([x])]) for x in bounds)  # of a device that does not say so


@pytest.mark.parametrize("name", ["ADD", "CONV_2D", "GATHER", "CONCATENATION"])
def test_a_call_again_has_other_elements_where_they_may_be_any_and_is_the_same_otherwise(name):
    rng = np.random.default_rng(5)
    for cell in (c for c in cells([name]) if c.values == "ordinary"):
        call = draw(cell, rng)
        other = with_other_values(call, rng)
        arguments = [a for a, start, end in call.bound.form.slots(len(call.inputs)) for _ in range(start, end)]
        for place, (argument, x, y) in enumerate(zip(arguments, call.inputs, other.inputs, strict=True)):
            if x is None or place not in call.given or argument.drawn is not None:
                assert x is y
                continue
            assert (x.type, x.known, x.scale, x.zero_point) == (y.type, y.known, y.scale, y.zero_point)
            if x.array.size > 3:
                assert not np.array_equal(x.array, y.array), argument.name


def test_a_prepared_model_runs_several_times_each_on_other_elements():
    class Recording(Wrong):
        prepared, runs = 0, []

        def prepare(self, model, hints):
            prepared = super().prepare(model, hints)
            self.prepared += 1
            inner = prepared.run

            def run(request, control):
                self.runs.append((self.prepared, request.inputs[0].tobytes()))
                inner(request, control)

            prepared.run = run
            return prepared

    device = Recording(lambda x: x)
    cell = Cell(OPS["FLOOR"], 0, F32, "ordinary")
    assert len(list(compare_device(device, discovery.cpu(), cell, np.random.default_rng(2), 10))) == 10
    assert [n for n, _ in device.runs] == [1, 1, 1, 1, 2, 2, 2, 2, 3, 3]
    assert len({x for _, x in device.runs}) == 10


def test_what_is_nearer_to_0_than_the_least_normal_number_counts_as_0_and_no_more():
    from nnhal.conformance.differential import flushed

    for kind in (np.float32, np.float16):
        least = np.finfo(kind).tiny
        x = np.array([least, -least, least / 2, -least / 2, 1, np.inf, np.nan], kind)
        found = flushed(x)
        np.testing.assert_array_equal(found, np.array([least, -least, 0, -0.0, 1, np.inf, np.nan], kind))
        assert found.dtype == kind and np.signbit(found[3])
    whole = np.int32([0, 1])
    assert flushed(whole) is whole


def test_only_sums_have_the_room_of_sums():
    """Written out: an operation with a word too many here would be let off."""
    found = {words: {name for name, record in OPS.items() if record.sums == words} for words in ("products", "terms")}
    assert found == {
        "products": {
            *("CONV_2D", "DEPTHWISE_CONV_2D", "GROUPED_CONV_2D", "TRANSPOSE_CONV_2D"),
            *("FULLY_CONNECTED", "BATCH_MATMUL"),
        },
        "terms": {
            *("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"),
            *("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN"),
            *("SVDF", "AVERAGE_POOL_2D", "RESIZE_BILINEAR", "ROI_ALIGN", "MEAN", "REDUCE_SUM"),
            "INSTANCE_NORMALIZATION",
        },
    }
    call = added([1e7], [-1e7])
    assert compare_outputs(call, [np.float32([0])], [np.float32([1])])  # 64 units of 2e7 would be 152
    assert compare_outputs(call, [np.float32([0])], [np.float32([9e-6])]) == ""


def test_records_with_something_open_are_these():
    found = {name for name, record in OPS.items() if record.leaves_open is not None}
    assert found == {
        *("DIV", "HASHTABLE_LOOKUP", "HEATMAP_MAX_KEYPOINT", "SOFTMAX", "LOG_SOFTMAX"),
        *("AVERAGE_POOL_2D", "MAX_POOL_2D", "REDUCE_PROD", "REDUCE_SUM", "MEAN", "RESIZE_BILINEAR"),
        *("RNN", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_RNN", "SVDF"),
        *("LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM", "BIDIRECTIONAL_SEQUENCE_LSTM"),
    }


def test_magnitudes_of_either_sign_make_room():
    """What a normalised cell makes of magnitudes may be negative: no less room for that."""
    cell = next(c for c in cells(["BIDIRECTIONAL_SEQUENCE_LSTM"]) if c.values == "ties" and c.kind == F32)
    rng, negative = np.random.default_rng(5), 0
    for _ in range(200):
        call = draw(cell, rng)
        totals = kernel_outputs(call, magnitudes=True)
        for n, wanted in enumerate(kernel_outputs(call)):
            negative += bool((totals[n] < -1.4).any())
            assert agreeing(call, n, wanted, wanted).all()
            assert agreeing(call, n, wanted, wanted + np.float32(5e-6)).all()
    assert negative


@pytest.mark.parametrize(("name", "wanted"), [("RELU", [0]), ("RELU1", [-1, 1]), ("RELU6", [0, 6]), ("TANH", [])])
def test_nan_may_become_the_bounds_of_an_operation_that_clips(name, wanted):
    asked = called(name, tensor([np.nan]), out=Value(F32, None))
    given = [np.float32([np.nan])]
    fine = [x for x in (-1, 0, 1, 6, 7, 2) if compare_outputs(asked, given, [np.float32([x])], ["clipped_nan"]) == ""]
    assert sorted(fine) == wanted


def test_an_order_of_summing_up_may_cost_64_units_of_the_magnitudes():
    """1e4 * 1 - 1e4 * 1: the sum of magnitudes is 2e4."""
    asked = called(
        "FULLY_CONNECTED", tensor([[1e4, 1e4]]), tensor([[1, -1]]), tensor([0]), scalar(0), out=Value(F32, None)
    )
    room = 1e-5 + 64 * 2e4 * 2.0**-23  # and the absolute tolerance
    for off, fine in ((0.99 * room, True), (-0.99 * room, True), (1.005 * room, False), (-1.005 * room, False)):
        assert (compare_outputs(asked, [np.float32([[0]])], [np.float32([[off]])]) == "") is fine, off


def test_both_parts_of_complex_elements_count():
    asked, wanted = added([1], [3]), np.complex64([1 + 1j])
    for actual, fine in ((1 + 1j, True), (1 + 1.000001j, True), (1 + 2j, False), (2 + 1j, False)):
        assert agreeing(asked, 0, wanted, np.complex64([actual])).tolist() == [fine]

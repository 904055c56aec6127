"""What was measured of devices, as plain data: what it predicts, how it is written, what it refuses to be."""

import json
import math
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.bench import workloads
from nnhal.frontends.python import Builder
from nnhal.ops import OPS
from nnhal.runtime.measured.families import FAMILIES, OperationWork, SubgraphWork, work_of_operations
from nnhal.runtime.measured.profile import (
    CrossingCost,
    DeviceProfile,
    LinearCost,
    MachineProfile,
    Workload,
    decoded,
    encoded,
)
from tests.models import counted_loop, doubling, make_model, make_subgraph

US = 1e-6


def network(kind: str = "float32", predicted: float = 1.0, took: float = 1.0, **more: Any) -> Workload:
    given = {"seconds_threads": took, "seconds_sustained": took, "cpu_seconds": took, **more}
    return Workload(kind, predicted, took, **given)


def device(lines: Any = None, **more: Any) -> DeviceProfile:
    return DeviceProfile("id", "1", lines or {"float32": {"add": LinearCost(US, 0.0, 0.0)}}, {"none": 5 * US}, **more)


def work(family: str = "add", kind: str = "float32", macs: int = 0, bytes: int = 0, turns: int = 1) -> OperationWork:
    return OperationWork(family, kind, macs, bytes, turns)


def test_every_family_that_a_record_names_is_known_and_has_a_member() -> None:
    named = {record.cost for record in OPS.values() if not record.code >> 16} - {""}
    assert named == set(FAMILIES) - {"pointwise"} and len(FAMILIES) == len(set(FAMILIES))


def test_the_work_of_an_operation_is_its_multiplications_and_the_bytes_that_it_touches() -> None:
    b = Builder()
    x = b.input((1, 8, 8, 4))
    y = b.conv_2d(x, np.ones((6, 3, 3, 4), np.float32), np.zeros(6, np.float32), padding="same", stride=1)
    z = b.conv_2d(y, np.ones((2, 1, 1, 6), np.float32), np.zeros(2, np.float32), padding="same", stride=1)
    three, one = work_of_operations(b.finish([x], [z]))
    assert (three.family, three.kind, three.macs) == ("convolution", "float32", 8 * 8 * 6 * 3 * 3 * 4)
    assert (one.family, one.macs) == ("pointwise", 8 * 8 * 2 * 6)
    tensors = 4 * (8 * 8 * 4 + 6 * 3 * 3 * 4 + 6 + 8 * 8 * 6)
    assert tensors <= three.bytes <= tensors + 64  # and what it is told beside its data


@pytest.mark.parametrize(("time_major", "shape"), [(True, (7, 2, 4)), (False, (2, 7, 4))])
@pytest.mark.parametrize(("name", "turns"), [("UNIDIRECTIONAL", 7), ("BIDIRECTIONAL", 14)])
def test_a_sequence_takes_a_turn_for_each_of_its_steps(
    name: str, turns: int, time_major: bool, shape: tuple[int, ...]
) -> None:
    b = Builder()
    x, cells = b.input(shape), np.ones((4, 4), np.float32)
    one = {"weights": cells, "recurrent_weights": cells, "bias": np.zeros(4, np.float32)}
    one["hidden_state"] = np.zeros((2, 4), np.float32)
    if name == "BIDIRECTIONAL":
        one = {f"{way}_{key}": value for way in ("fw", "bw") for key, value in one.items()}
    more: dict[str, Any] = {"activation_kind": "relu", "time_major": int(time_major)}
    if name == "BIDIRECTIONAL":
        more |= {"time_major": time_major, "merge_outputs": True}
    y = b.operation(f"{name}_SEQUENCE_RNN", x, **one, **more)
    (found,) = work_of_operations(b.finish([x], [y]))
    assert (found.family, found.turns) == ("lstm", turns)


def test_what_is_no_sequence_takes_one_turn() -> None:
    assert work_of_operations(doubling(7, 7, 7))[0].turns == 1


def test_a_sequence_of_which_an_execution_says_how_it_lies_counts_the_longer_way() -> None:
    b = Builder()
    x, time_major = b.input((2, 7, 4)), b.input((), "INT32")
    cells, bias, state = np.ones((4, 4), np.float32), np.zeros(4, np.float32), np.zeros((2, 4), np.float32)
    y = b.unidirectional_sequence_rnn(x, cells, cells, bias, state, activation_kind="relu", time_major=time_major)
    assert work_of_operations(b.finish([x, time_major], [y]))[0].turns == 7


def test_control_flow_takes_what_is_inside_as_often_as_it_runs() -> None:
    lines = {"float32": {"relu": LinearCost(7 * US, 0.0, 0.0), "add": LinearCost(US, 0.0, 0.0)}}
    lines["float32"]["pad"] = LinearCost(100 * US, 0.0, 0.0)  # what has no family goes by

    def twice(s: Builder, y: Any) -> Any:
        return counted_loop(s, y, 2, lambda t, v, *_: t.relu(v))

    def model(body: Any, times: int) -> OperationWork:
        (found,) = work_of_operations(
            make_model(lambda b, x: counted_loop(b, x, times, lambda s, y, *_: body(s, y)), (4,))
        )
        return found

    def seconds(found: OperationWork) -> float:
        (each,) = device(lines).predicted([found], 1) or [0.0]
        return each / US

    plain = 100 + 6 * 1 + 5 * (1 + 7)  # LESS once more than the body, which counts and computes
    assert seconds(model(lambda s, y: s.relu(y), 5)) == pytest.approx(plain)
    inner = 100 + 3 * 1 + 2 * (1 + 7)
    assert seconds(model(twice, 3)) == pytest.approx(100 + 4 * 1 + 3 * (1 + inner))


def test_a_branch_counts_by_half() -> None:
    def build(b: Builder, condition: Any, x: Any) -> Any:
        one, other = (make_subgraph(b, lambda s, y, n=n: stack(s, y, n), (4,)) for n in (1, 4))
        return b.if_(condition, one, other, [x], out_type="TENSOR_FLOAT32")

    def stack(s: Builder, y: Any, count: int) -> Any:
        for _ in range(count):
            y = s.relu(y)
        return y

    lines = {"float32": {"relu": LinearCost(2 * US, 0.0, 0.0), "pad": LinearCost(100 * US, 0.0, 0.0)}}
    works = work_of_operations(make_model(build, ((1,), "TENSOR_BOOL8"), (4,)))
    assert device(lines).predicted(works, 1) == pytest.approx([(100 + 2 * (1 + 4) / 2) * US])


def test_what_a_loop_touches_counts_once_for_the_networks_of_its_family() -> None:
    lines = {"float32": {"lstm": LinearCost(US, 0.0, 0.0), "pad": LinearCost(0.0, 0.0, 0.0)}}
    found = device(lines, workloads={"stack": network(took=3.0, family="lstm", bytes=1000)})
    loop = work("")._replace(inside=(SubgraphWork(10, (work("lstm", bytes=500),)),))
    assert found.predicted([loop], 1) == pytest.approx([10 * 2 * US])  # half of its bytes, half of its excess


def test_what_an_operation_takes_beside_its_work_it_takes_for_each_turn() -> None:
    lines = {"float32": {"lstm": LinearCost(2 * US, 1e-12, 1e-9)}}
    sequence = work("lstm", macs=1000, bytes=100, turns=50)
    assert device(lines).predicted([sequence], 1) == pytest.approx([100 * US + 1e-9 + 1e-7])


def test_what_a_network_of_a_family_says_goes_with_the_bytes_that_a_model_touches_of_it() -> None:
    lines = {"float32": {"lstm": LinearCost(US, 0.0, 0.0), "add": LinearCost(US, 0.0, 0.0)}}
    large = network(took=3.0, family="lstm", bytes=1000)
    found = device(lines, workloads={"stack": large, "plain": network(took=1.5)})
    for touched, factor in ((2000, 3.0), (1000, 3.0), (500, 2.0), (0, 1.0)):
        assert found.predicted([work("lstm", bytes=touched)], 1) == pytest.approx([factor * US])
    assert found.predicted([work("lstm", bytes=250), work("lstm", bytes=250)], 1) == pytest.approx([2 * US] * 2)
    assert found.predicted([work("add", bytes=5)], 1) == pytest.approx([1.5 * US])  # others are as all networks were


def test_of_the_networks_of_a_family_the_nearest_in_multiplications_for_each_byte_counts() -> None:
    """One step of a sequence waits for its weights; twenty steps use them again."""
    lines = {"float32": {"lstm": LinearCost(US, 0.0, 0.0)}}
    several = network(took=8.0, family="lstm", bytes=1000, macs=5000)
    found = device(
        lines, workloads={"one step": network(took=2.0, family="lstm", bytes=1000, macs=250), "more": several}
    )
    for macs, least, most in ((250, 2.0, 2.1), (5000, 7.6, 8.0), (1118, 3.99, 4.01), (1, 2.0, 2.1), (10**6, 7.6, 8.0)):
        (took,) = found.predicted([work("lstm", macs=macs, bytes=1000)], 1) or [0.0]
        assert least <= took / US <= most, macs


def test_what_quantises_at_execution_counts_as_one_operation_and_its_layers_apart() -> None:
    """An engine may run it whole, in 8 bits: the sum of its operations is not what that takes."""
    b = Builder()
    x = b.input((4, 32))
    steps, scale = workloads.quantised_at_execution(b, x)
    y = b.fully_connected(steps, np.ones((8, 32), np.float32), np.zeros(8, np.float32))
    works = work_of_operations(b.finish([x], [b.mul(b.mul(y, scale), y)]))
    quantised = [each for each in works if each.family == "quantize"]
    assert len(quantised) == 40 and {each.kind for each in quantised} == {"dynamic"}
    assert [(each.turns, each.bytes > 4 * 4 * 32) for each in quantised if each.bytes] == [(1, True)]
    assert [each.macs for each in works if (each.kind, each.family) == ("dynamic", "fully_connected")] == [4 * 32 * 8]
    assert [each.kind for each in works if each.family == "add"] == ["float32"] * 2


def test_an_operation_takes_what_its_line_says_times_what_whole_networks_took_over_their_sums() -> None:
    lines = {"float32": {"pointwise": LinearCost(2 * US, 1e-12, 1e-9)}}
    bare = device(lines)
    assert bare.predicted([work("pointwise", macs=1000, bytes=100)], 1) == pytest.approx([2 * US + 1e-9 + 1e-7])
    both = {"a": network(predicted=1.0, took=2.0), "b": network(predicted=1.0, took=0.5 * 4)}
    assert device(lines, workloads=both).predicted([work("pointwise")], 1) == pytest.approx([4 * US])


def test_more_threads_have_a_factor_of_their_own() -> None:
    found = device(workloads={"a": network(took=2.0, seconds_threads=1.0, cpu_seconds=1.8, seconds_sustained=0.9)})
    assert found.predicted([work()], 1) == pytest.approx([2 * US])
    assert found.predicted([work()], 0) == pytest.approx([US])
    assert found.cores() == pytest.approx(1.8) and found.sustained() == pytest.approx(0.9)


def test_networks_that_take_less_than_their_sums_make_no_operation_faster_than_among_its_like() -> None:
    found = device(workloads={"a": network(took=0.4), "b": network(took=0.9, seconds_threads=0.3)})
    for family in ("add", ""):
        assert found.predicted([work(family)], 1) == pytest.approx([US])
        assert found.predicted([work(family)], 0) == pytest.approx([US * (0.3 / 0.9) ** 0.5])  # but more threads do
    mixed = device(workloads={"a": network(took=0.9), "b": network(took=2.5)})
    assert mixed.predicted([work()], 1) == pytest.approx([1.5 * US])  # all together


def test_what_recurrent_networks_take_says_nothing_of_others() -> None:
    found = device(workloads={"stack": network(took=3.0, family="lstm")})
    assert found.predicted([work()], 1) == pytest.approx([US])


def test_control_flow_says_nothing_of_what_operations_take() -> None:
    found = device(workloads={"a": network(took=2.0), "if": network("if", took=50.0)})
    assert found.predicted([work()], 1) == pytest.approx([2 * US])


def test_what_was_not_measured_is_as_what_is_nearest() -> None:
    lines = {
        "float32": {"pool": LinearCost(1 * US, 0, 0), "add": LinearCost(2 * US, 0, 0)},
        "quant8": {"relu": LinearCost(3 * US, 0, 0)},
    }
    asked = [work("pool"), work("pool", "relaxed"), work("pool", "quant8"), work("softmax", "quant8"), work("")]
    assert device(lines).predicted(asked, 1) == pytest.approx([US, US, US, 3 * US, 2 * US])


def test_a_device_of_which_nothing_near_was_measured_is_not_predicted() -> None:
    assert device({"quant8": {"pool": LinearCost(US, 0, 0)}}).predicted([work("softmax", "float32")], 1) is None


def test_what_the_hal_wants_stated_is_time_and_processor_time_of_networks_that_both_ran() -> None:
    cpu = device(workloads={"a": network(took=8.0), "b": network(took=2.0), "q": network("quant8", took=1.0)})
    fast = device(
        workloads={
            "a": network(took=1.0, cpu_seconds=2.0),
            "b": network(took=1.0, cpu_seconds=2.0),
            "w": network("while"),
        }
    )
    (found,) = fast.against(cpu).items()
    assert found[0] == "float32" and found[1].exec_time == pytest.approx(0.25)  # the geometric mean of 1/8 and 1/2
    assert found[1].power_usage == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------------------ the file


def whole() -> MachineProfile:
    crossings = {"a > b": {"none": CrossingCost(US, 1e-9)}}
    return MachineProfile("here", 1, {"a": device(workloads={"n": network()})}, crossings)


def test_a_profile_comes_back_as_it_was_written() -> None:
    assert decoded(encoded(whole()), "f") == whole()
    assert whole().crossing("a", "b", "none") == CrossingCost(US, 1e-9)
    assert whole().crossing("b", "a", "none") is None and whole().crossing("a", "b", "process") is None


ADD = "devices", "a", "lines", "float32", "add"


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("form",), 1, r"f: format is 1, must be 3: run nnhal calibrate again"),
        ((*ADD, "fixed"), -1.0, r"f: devices\.a\.lines\.float32\.add\.fixed = -1\.0, must be .* at least 0"),
        (
            ("devices", "a", "lines", "float32", "addition"),
            {"fixed": 0, "mac": 0, "byte": 0},
            "'addition' must be one of",
        ),
        (("devices", "a", "lines", "float31"), {}, r"devices\.a\.lines: 'float31' must be one of float32"),
        (("devices", "a", "steps", "none"), -5.0, r"devices\.a\.steps\.none = -5\.0"),
        (
            ("devices", "a", "steps", "none"),
            1e10,
            r"devices\.a\.steps\.none = 10000000000\.0, must be .* at most 1e\+09",
        ),
        (("devices", "a", "steps", "here"), 5.0, r"devices\.a\.steps: 'here' must be one of none, process"),
        (("devices", "a", "steps", "none"), math.inf, r"f: "),
        (("devices", "a", "workloads", "n", "predicted"), 0.0, r"workloads\.n\.predicted = 0\.0, must be"),
        (("devices", "a", "workloads", "n", "bytes"), -1, r"workloads\.n\.bytes = -1, must be"),
        (("devices", "a", "workloads", "n", "macs"), -1, r"workloads\.n\.macs = -1, must be"),
        (("devices", "a", "workloads", "n", "kind"), "float99", r"workloads\.n\.kind: 'float99' must be one of"),
        (("crossings", "a > b", "none", "byte"), -1e-9, r"crossings\.a > b\.none\.byte = -1e-09"),
        (("made",), "yesterday", r"f: is not a profile: .*made"),
        (("more",), 2, r"f: is not a profile: .*more"),
    ],
)
def test_a_file_that_is_no_profile_says_where(path: tuple[str, ...], value: Any, said: str) -> None:
    document = json.loads(encoded(whole()))
    place = document
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    with pytest.raises(nnhal.BadFile, match=said):
        decoded(json.dumps(document).encode(), "f")


@pytest.mark.parametrize("data", [b"", b"[]", b"\xff\xfe", b"{", b'{"form": 1}', b"nan"])
def test_what_is_not_even_json_is_refused(data: bytes) -> None:
    with pytest.raises(nnhal.BadFile, match="f: is not a profile"):
        decoded(data, "f")

"""`nnhal verify`: the fastest form that is right on this processor is found and remembered, whatever the others do."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Activation, OperandType
from nnhal.base.errors import InvalidArgument, OperationFailed
from nnhal.conformance.differential import arrays_of, compare_outputs, kernel_outputs, model_of, run, tensors_of
from nnhal.conformance.draw import AT_BOUNDS
from nnhal.conformance.pool import children_of
from nnhal.conformance.proving.hard import BOUNDED, FAMILIES, hard_calls
from nnhal.conformance.proving.run import ProofOutcome, found_by, keep
from nnhal.conformance.proving.wide import BROAD, DEEP, WIDE, wide_calls
from nnhal.drivers.reference import Reference
from nnhal.hal.cache.state import HEAD
from nnhal.hal.chain import checked_prepared
from nnhal.hal.choices import Proved, VariantChoice
from nnhal.hal.device import Device, Hints, Prepared
from nnhal.hal.proofs import choices_of
from nnhal.hal.wrappers import WithOptions
from nnhal.ops import OPS
from nnhal.ops.common import ACTIVATION_RANGE, nhwc
from nnhal.ops.convolution import convolved, depthwise, grouped
from nnhal.ops.dense import fully_connected
from nnhal.ops.schema import F32, Q8, Q8S
from nnhal.ops.transposed import transposed
from nnhal.ops.weighted import weighted
from nnhal.runtime import discovery, isolation
from tests.differential.ends import off
from tests.waiting import until

DRIVER = Path(__file__).parents[1] / "drivers" / "forms_driver.py"
QUANT8 = "TENSOR_QUANT8_ASYMM"
LIMIT = 120.0


def prove(state: Path, *words: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "nnhal.cli.main", "verify", str(DRIVER), "--timeout", "2", "--json", *words]
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env={**os.environ, "NNHAL_STATE_DIR": str(state)}, **pipes)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """A state folder after two proofs at once, and what they printed."""
    state = tmp_path_factory.mktemp("proofs") / "state"
    both = prove(state), prove(state)
    printed = [each.communicate(timeout=LIMIT) for each in both]
    assert [each.returncode for each in both] == [1, 1], printed  # of one operation no form is right
    documents = [json.loads(out) for out, _ in printed]
    assert all(len(document) == 1 for document in documents)
    return state, [document[0] for document in documents]


@pytest.fixture
def proved(two: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    """The device, in a process that finds the proof."""
    monkeypatch.setenv("NNHAL_STATE_DIR", str(two[0]))
    yield discovery.load_driver(DRIVER)
    isolation.close_all()


@pytest.fixture
def unproved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    yield discovery.load_driver(DRIVER)
    isolation.close_all()


WANTED = {  # by what forms_driver.py does in each form
    ("FULLY_CONNECTED", QUANT8): "exact",
    ("FULLY_CONNECTED", "TENSOR_FLOAT32"): "float32",
    ("SUB", QUANT8): "fast",
    ("ADD", QUANT8): "exact",
    ("MUL", QUANT8): "exact",
    ("AVERAGE_POOL_2D", QUANT8): None,
}


@pytest.mark.parametrize("name", WIDE)
def test_wide_calls_are_wider_than_tiles_and_the_reference_computes_them(name: str) -> None:
    kinds = [kind for kind in (F32, Q8, Q8S) if kind in OPS[name].types]
    found = [call for kind in kinds for call in wide_calls(name, kind)]
    assert len(found) >= 2 * len(kinds) - 1
    for call in found:
        assert {BROAD, DEEP, 2 * DEEP} & {size for value in call.inputs if value for size in value.known}
        (wanted,) = kernel_outputs(call)
        assert compare_outputs(call, [wanted], [wanted]) == "" and np.isfinite(wanted.astype(float)).all()


def test_of_each_operation_the_first_right_form_is_proved(two: tuple[Path, list[dict[str, Any]]]) -> None:
    for document in two[1]:
        assert {(o["operation"], o["type"]): o["form"] for o in document["operations"]} == WANTED
        assert all(o["proved"] for o in document["operations"]) and document["device"] == "forms"


def test_why_no_faster_form_runs_says_what_it_did(two: tuple[Path, list[dict[str, Any]]]) -> None:
    why = {(o["operation"], o["type"]): o["why"] for o in two[1][0]["operations"]}
    assert why["SUB", QUANT8] == ""
    assert why["ADD", QUANT8] == "crash ADD of QUANT8_ASYMM ends its process (was killed by SIGABRT): run in exact"
    assert why["MUL", QUANT8] == "hang MUL of QUANT8_ASYMM has not ended within 2 s: run in exact"
    pairs = why["FULLY_CONNECTED", QUANT8]
    assert pairs.startswith("pairs FULLY_CONNECTED of QUANT8_ASYMM is off by ") and pairs.endswith(
        " LSB on this processor: run in exact"
    )
    assert "of the greatest element on this processor: run in float32" in why["FULLY_CONNECTED", "TENSOR_FLOAT32"]
    assert why["AVERAGE_POOL_2D", QUANT8].count("off by 64 LSB") == 2
    assert why["AVERAGE_POOL_2D", QUANT8].endswith(": not claimed")


def test_forms_are_tried_the_fastest_first_and_no_slower_one_than_needed(
    two: tuple[Path, list[dict[str, Any]]],
) -> None:
    tried = {
        (o["operation"], o["type"]): [t["form"] + " " + t["verdict"] for t in o["tried"]]
        for o in two[1][0]["operations"]
    }
    assert tried["SUB", QUANT8] == ["fast passed"]
    assert tried["ADD", QUANT8] == ["crash crashed", "exact passed"]
    assert tried["MUL", QUANT8] == ["hang hung", "exact passed"]
    assert tried["AVERAGE_POOL_2D", QUANT8] == ["wrong failed", "also wrong failed"]


def test_the_next_start_of_the_driver_finds_what_was_proved(proved: Device) -> None:
    found = {(c.operation, OperandType(c.type).name): c.form for c in choices_of(proved) if c.found is not None}
    assert found == WANTED
    assert proved.version.startswith("1.0+")


def test_without_a_proof_all_runs_in_its_exact_form_and_no_record_appears(unproved: Device, tmp_path: Path) -> None:
    assert {c.form for c in choices_of(unproved)} == {"exact", "float32", "also wrong", ""}
    assert nnhal.compile(of_pairs(), devices=[unproved])(EXTREME).tolist() == EXACT
    assert not (tmp_path / "state" / "proofs").exists()


EXTREME = np.full((1, 8), 255, np.uint8)
EXACT = [[28, 255]]  # 8 * 255 * -100 and 8 * 255 * 127, in steps of 2040 from 128
SATURATED = [[64, 192]]  # 4 * -32768 and 4 * 32767


def of_pairs() -> nnhal.Model:
    """Products of which 16 bits do not hold the sum of two."""
    b = nnhal.Builder()
    x = b.input((1, 8), QUANT8, 1.0, 0)
    weights = np.stack([np.full(8, 28, np.uint8), np.full(8, 255, np.uint8)])
    w = b.constant(weights, QUANT8, 1.0, 128)
    bias = b.constant(np.zeros(2, np.int32), "TENSOR_INT32", 1.0, 0)
    return b.finish([x], [b.fully_connected(x, w, bias, scale=2040.0, zero_point=128)])


@pytest.mark.parametrize(("forms", "wanted"), [("proved", EXACT), ("exact", EXACT), ("fast", SATURATED)])
def test_the_form_that_saturates_runs_where_the_proof_is_overruled_only(
    proved: Device, forms: str, wanted: list[list[int]]
) -> None:
    compiled = nnhal.compile(of_pairs(), devices=[proved], driver_options={"forms": {"forms": forms}})
    assert compiled(EXTREME).tolist() == wanted


def test_a_driver_in_a_confined_process_of_its_own_finds_the_proof_too(proved: Device) -> None:
    apart = nnhal.compile(of_pairs(), devices=["forms"], isolation="process")
    assert apart(EXTREME).tolist() == EXACT
    assert isolation.select(["forms"], "process")[0].version == proved.version
    assert "is off by" in apart.placement.why(0) and "seccomp" in str(isolation.confinement(["forms"]))


def test_in_a_process_of_its_own_nothing_is_proved_where_there_is_no_record(unproved: Device) -> None:
    apart = nnhal.compile(of_pairs(), devices=["forms"], isolation="process")
    assert apart(EXTREME).tolist() == EXACT and "is off by" not in apart.placement.why(0)
    assert isolation.select(["forms"], "process")[0].version == "1.0"


def test_placement_says_why_an_operation_runs_in_a_slower_form(proved: Device) -> None:
    told = " ".join(nnhal.compile(of_pairs(), devices=[proved]).placement.why(0).split())
    assert "pairs FULLY_CONNECTED of QUANT8_ASYMM is off by" in told


def test_an_operation_without_a_right_form_is_not_claimed(proved: Device) -> None:
    b = nnhal.Builder()
    x = b.input((1, 4, 4, 1), QUANT8, 1.0, 0)
    model = b.finish([x], [b.average_pool_2d(x, filter_size=2, padding="valid")])
    with pytest.raises(nnhal.UnsupportedModel, match="off by 64 LSB on this processor: not claimed"):
        nnhal.compile(model, devices=[proved], fallback="forbid")


def told(state: Path, *words: str, code: int = 0) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "nnhal.cli.main", *words]
    environment = {**os.environ, "NNHAL_STATE_DIR": str(state), "COLUMNS": "300"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=LIMIT)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def test_devices_says_which_forms_run_and_why_no_faster_ones(two: tuple[Path, Any], tmp_path: Path) -> None:
    words = "devices", "forms", "--driver", str(DRIVER), "--no-isolation", "--verbose"
    text = " ".join(told(two[0], *words).split())
    assert "fast: 1 operation/type pairs verified on this CPU: SUB uint8" in text
    assert "hang MUL of QUANT8_ASYMM has not ended within 2 s: run in exact" in text
    assert "off by 64 LSB" in text and ": not claimed" in text and "reference kernel" not in text
    text = " ".join(told(tmp_path, *words).split())
    faster = f"`nnhal verify {DRIVER}` verifies fast ones"
    assert f"6 operation/type pairs run in their reference kernel; {faster}" in text


def test_prove_prints_a_row_for_each_operation_with_a_choice(tmp_path: Path) -> None:
    printed = told(tmp_path, "verify", str(DRIVER), "--timeout", "1", code=1)
    rows = [line.split() for line in printed.splitlines() if " TENSOR_" in line]
    assert {(name, kind): form for name, kind, form, *_ in rows} == {
        key: form or "none" for key, form in WANTED.items()
    }
    assert "device forms: 6 verified, " in printed and (tmp_path / "proofs").exists()


def test_every_also_looks_at_operations_of_one_form(tmp_path: Path) -> None:
    words = "verify", str(DRIVER), "--all-operations", "--timeout", "1", "--json"
    (document,) = json.loads(told(tmp_path, *words, code=1))
    found = {(o["operation"], o["type"]): (o["known"], o["form"], o["proved"]) for o in document["operations"]}
    assert found["RELU", QUANT8] == ([""], "", True) and found["RELU", "TENSOR_FLOAT32"] == ([""], "", True)
    assert found["SUB", QUANT8] == (["fast", "exact"], "fast", True)


def test_single_operations_are_proved_and_what_was_found_of_others_stays(tmp_path: Path) -> None:
    for name in ("sub", "ADD"):
        (document,) = json.loads(told(tmp_path, "verify", str(DRIVER), "--operation", name, "--json"))
        assert [o["operation"] for o in document["operations"]] == [name.upper()]
    (entry,) = (
        e for e in json.loads(told(tmp_path, "devices", "--driver", str(DRIVER), "--json")) if e["name"] == "forms"
    )
    assert {f["operation"] for f in entry["forms"] if f["proved"]} == {"SUB", "ADD"}
    told(tmp_path, "verify", str(DRIVER), "--operation", "NONE", code=2)


def test_a_device_that_has_nothing_to_prove_is_no_error(tmp_path: Path) -> None:
    assert json.loads(told(tmp_path, "verify", "reference", "--json"))[0]["operations"] == []
    assert not (tmp_path / "proofs").exists()


@pytest.mark.parametrize("value", ["quick", "", 1, None, ["fast"]])
def test_an_option_that_is_no_way_is_refused(unproved: Device, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"option forms is .*, must be one of proved, fast, exact"):
        unproved.consider(of_pairs(), Hints(options={"forms": value}))


# ------------------------------------------------------------------------------------------------- hard enough, and fair


def test_the_saturation_test_fails_when_the_proof_is_disabled(proved: Device) -> None:
    assert off(proved, "FULLY_CONNECTED", Q8)[0] == ""
    assert "off by" in off(WithOptions(proved, {"forms": "fast"}), "FULLY_CONNECTED", Q8)[0]


SUMS = {
    "CONV_2D": lambda sums: nhwc(weighted(sums(convolved))),
    "DEPTHWISE_CONV_2D": lambda sums: nhwc(weighted(sums(depthwise))),
    "GROUPED_CONV_2D": lambda sums: nhwc(weighted(sums(grouped))),
    "TRANSPOSE_CONV_2D": lambda sums: nhwc(weighted(sums(transposed))),
    "FULLY_CONNECTED": lambda sums: weighted(sums(fully_connected)),
}


def in_16_bits(exact: Any) -> Any:
    return lambda a, x, weights: np.clip(exact(a, x, weights), -(2**15), 2**15 - 1)


def in_7_bits(exact: Any) -> Any:
    """Weights without their last bit, as engines take them where products saturate."""
    return lambda a, x, weights: exact(a, x, np.trunc(weights / 2) * 2)


def in_31_bits(exact: Any) -> Any:
    return lambda a, x, weights: np.clip(exact(a, x, weights), -(2**30), 2**30 - 1)


def caught(operation: str, kind: int, kernel: Any) -> int:
    """How many hard calls tell a kernel from the record's own."""
    wrong = 0
    for call in hard_calls(operation, kind):
        arrays = [None if v is None else v.array for v in call.inputs]
        actual = np.asarray(kernel(call.bound, *call.bound.form.tensors(arrays)))
        wrong += bool(compare_outputs(call, kernel_outputs(call), [actual]))
    return wrong


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Q8, Q8S])
@pytest.mark.parametrize("operation", SUMS)
def test_hard_calls_tell_narrow_sums_and_weights_from_exact_ones(operation: str, kind: int) -> None:
    for narrow in (in_16_bits, in_7_bits):
        assert caught(operation, kind, SUMS[operation](narrow)) >= 2, narrow.__name__


@pytest.mark.parametrize("kind", [Q8, Q8S])
def test_hard_calls_tell_sums_that_leave_31_bits(kind: int) -> None:
    assert caught("FULLY_CONNECTED", kind, SUMS["FULLY_CONNECTED"](in_31_bits)) >= 1


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("operation", "kind"), [(o, k) for o in FAMILIES for k in (Q8, Q8S) if k in OPS[o].types])
def test_hard_calls_tell_results_that_wrap_around_or_are_off_by_two(operation: str, kind: int) -> None:
    kernel, low = OPS[operation].kernel, int(np.iinfo(np.uint8 if kind == Q8 else np.int8).min)

    def never_an_end(*arguments: Any) -> Any:
        return np.clip(kernel(*arguments), low + 2, low + 253)

    def off_at_odd_depths(*arguments: Any) -> Any:
        result = np.array(kernel(*arguments))
        if result.shape[-1] % 2:
            result[..., -1] ^= 3
        return result

    for wrong in (never_an_end, off_at_odd_depths):
        assert caught(operation, kind, wrong) >= 2, wrong.__name__


@pytest.mark.parametrize("kind", [Q8, Q8S])
@pytest.mark.parametrize("operation", BOUNDED)
def test_hard_calls_tell_bounds_without_their_decimals_from_rounded_ones(operation: str, kind: int) -> None:
    def cut(a: Any, *tensors: Any) -> Any:
        bounds = ACTIVATION_RANGE[a.__dict__.get("activation") or Activation[operation]]
        least, most = (int(bound / a.out.scale) + a.out.zero_point for bound in bounds)
        return np.clip(OPS[operation].kernel(a, *tensors), least, most).astype(a.out.dtype)

    calls = [call for call in hard_calls(operation, kind) if call.cell.values == AT_BOUNDS]
    wrong = [
        call for call in calls if compare_outputs(call, kernel_outputs(call), [cut(call.bound, *tensors_of(call))])
    ]
    assert len({call.bound.out.scale for call in wrong}) >= 2


def hard(operation: str, kind: int) -> Iterator[Any]:
    """The arguments of the calls that are made for it, by name."""
    return (call.bound for call in hard_calls(operation, kind) if call.cell.values == "hard")


@pytest.mark.parametrize("kind", [Q8, Q8S])
def test_hard_calls_leave_out_no_pair_of_what_kernels_are_chosen_by(kind: int) -> None:
    """Where two things took turns at the same pace, some pairs never came: few channels that become several, among them."""
    several = {(a.input.known[3], a.depth_multiplier) for a in hard("DEPTHWISE_CONV_2D", kind)}
    assert several == set(product((1, 2, 3, 17, 33), (1, 2, 3)))
    groups = {(a.groups, a.filter.known[3], a.filter.known[0] // a.groups) for a in hard("GROUPED_CONV_2D", kind)}
    assert groups == set(product((2, 3, 5), (1, 3, 17), (1, 2, 5)))
    plain = {(a.input.known[3], a.filter.known[0]) for a in hard("CONV_2D", kind)}
    assert plain == set(product((1, 3, 17, 33), (1, 3, 17, 33)))
    ways = {(a.scheme, a.stride_w, a.filter.known[1]) for a in hard("CONV_2D", kind)}
    assert len(ways) == 2 * 2 * 3
    pools = {(a.input.zero_point, a.filter_h) for a in hard("MAX_POOL_2D", kind)}
    assert len(pools) == 3 * 3
    rows = {(a.weights.zero_point, a.weights.known[1]) for a in hard("FULLY_CONNECTED", kind)}
    assert {(zero, depth) for zero in {z for z, _ in rows} for depth in (1, 3, 17, 33)} <= rows


@pytest.mark.parametrize("kind", [Q8, Q8S])
def test_hard_calls_tell_a_kernel_that_is_wrong_for_few_channels_that_become_several(kind: int) -> None:
    def forgetful(a: Any, x: Any, weights: Any, bias: Any) -> Any:
        wrong = 1 < x.shape[-1] < 5 and a.depth_multiplier > 1
        return OPS["DEPTHWISE_CONV_2D"].kernel(a, np.full_like(x, a.input.zero_point) if wrong else x, weights, bias)

    assert caught("DEPTHWISE_CONV_2D", kind, forgetful) >= 4


def halved(x: Any) -> Any:
    """Without the lower half of each float32."""
    if not isinstance(x, np.ndarray) or x.dtype != np.float32:
        return x
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("operation", FAMILIES)
def test_hard_calls_tell_bfloat16_from_float32(operation: str) -> None:
    kernel = OPS[operation].kernel
    with np.errstate(all="ignore"):
        assert caught(operation, F32, lambda a, *tensors: kernel(a, *map(halved, tensors))) >= 5


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("operation", "kind"), [(o, k) for o in FAMILIES for k in OPS[o].types])
def test_hard_calls_are_those_that_the_reference_agrees_with_itself_on(operation: str, kind: int) -> None:
    calls = list(hard_calls(operation, kind))
    assert len(calls) >= 6 and any(call.cell.values == "hard" for call in calls)
    for call in calls[::5]:
        wanted = run(checked_prepared(discovery.cpu(), model_of(call), Hints()), arrays_of(call))
        assert not compare_outputs(call, wanted, wanted)


def test_hard_calls_are_the_same_each_time_and_others_for_another_seed() -> None:
    def bytes_of(seed: int) -> list[bytes]:
        return [v.array.tobytes() for call in hard_calls("ADD", Q8, seed) for v in call.inputs if v is not None]

    assert bytes_of(0) == bytes_of(0) != bytes_of(1)


# ------------------------------------------------------------------------------------------------------- what is concluded


def outcome(form: str, verdict: str, reason: str = "") -> ProofOutcome:
    return ProofOutcome("ADD", F32, form, verdict, reason)


CHOICE = VariantChoice("ADD", F32, ("a", "b", "c"), None, "c")


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        ([outcome("a", "passed")], Proved("a")),
        ([outcome("a", "unsupported", "no"), outcome("b", "passed")], Proved("b")),
        (
            [outcome("a", "failed", "is off"), outcome("b", "hung", "hangs"), outcome("c", "passed")],
            Proved("c", "a ADD of FLOAT32 is off; b ADD of FLOAT32 hangs: run in c"),
        ),
        (
            [outcome("a", "unsupported"), outcome("b", "unsupported"), outcome("c", "failed", "is off")],
            Proved(None, "c ADD of FLOAT32 is off: not claimed"),
        ),
        ([outcome(form, "unsupported", "no") for form in "abc"], None),
        ([], None),
    ],
)
def test_what_is_found_by_what_came(outcomes: list[ProofOutcome], found: Proved | None) -> None:
    assert found_by(outcomes, [CHOICE]) == ({} if found is None else {("ADD", F32): found})


# ------------------------------------------------------------------------------------------------------------- interrupted


def test_a_proof_that_is_interrupted_leaves_no_result(tmp_path: Path) -> None:
    state = tmp_path / "state"
    process = prove(state, "--timeout", "60", "--jobs", "1")  # MUL hangs for that long
    until(lambda: children_of(process.pid), "a worker")
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=LIMIT)
    assert process.returncode == 130
    assert (state / "proofs").stat().st_size == HEAD.size


def test_what_another_proof_found_stays(two: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(two[0], tmp_path / "state")
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    device = discovery.load_driver(DRIVER)
    assert device.proofs is not None
    before = device.forms.found  # type: ignore[attr-defined]
    keep(device, {("RELU", F32): Proved("")})
    after = discovery.load_driver(DRIVER).forms.found  # type: ignore[attr-defined]
    assert len(before) == len(WANTED) and after == {**before, ("RELU", F32): Proved("")}


class Failing(Reference):
    """Fails to prepare, with much to say."""

    name = "failing"

    def prepare(self, model: nnhal.Model, hints: Hints) -> Prepared:
        raise OperationFailed("failing: cannot\n   " + "be prepared " * 40)


def test_what_an_engine_said_is_told_in_a_line() -> None:
    from nnhal.conformance.proving.worker import _failure

    call = next(hard_calls("ADD", F32))
    with pytest.raises(OperationFailed) as raised:
        checked_prepared(Failing(), model_of(call), Hints())
    line = _failure(str(raised.value), "failing")
    assert line.startswith("fails: cannot\\n be prepared be") and line.endswith(" ...") and "\n" not in line

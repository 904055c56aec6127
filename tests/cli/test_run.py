"""What `nnhal run` prints and writes, line by line, in this process."""

import json
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import nnhal as package
from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidRequest
from nnhal.cli import run
from nnhal.cli.inputs import InputFromFile
from nnhal.cli.main import main
from nnhal.cli.run import Labels, greatest, real_value, summary
from nnhal.model.metadata import AssociatedFile, Metadata, TensorMetadata
from nnhal.runtime.arguments import Spec
from nnhal.runtime.cache.wanted import CacheOutcome
from nnhal.runtime.partition import ASKED, Choice, Partition
from nnhal.runtime.placement import ExecutionStats, Placement
from nnhal.runtime.schedule import StepPlan
from tests.frontends.onnx_models import model, node

F32 = Spec("y", int(OperandType.TENSOR_FLOAT32), (4,), np.dtype("f4"), 0.0, 0)
Q8 = Spec("q", int(OperandType.TENSOR_QUANT8_ASYMM), (4,), np.dtype("u1"), 0.5, 10)
X = np.float32([3, -1, 7, 3])


def called(capsys: Any, *words: str, code: int = 0) -> tuple[str, str]:
    """What a command says on stdout and on stderr."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    assert (ended.value.code or 0) == code, said
    return said.out, said.err


# ------------------------------------------------------------------------------------------------------------- elements


def test_the_greatest_elements_come_first_and_equal_ones_in_their_order():
    found = greatest(F32, X.reshape(2, 2), 3, Labels())
    assert [(e["index"], e["value"]) for e in found] == [(2, 7), (0, 3), (3, 3)]
    assert all(e["label"] is None and "real" not in e for e in found)
    assert len(greatest(F32, X, 9, Labels())) == 4 and greatest(F32, X[:0], 2, Labels()) == []


def test_quantised_elements_have_their_real_values_and_bytes_do_not_wrap_around():
    found = greatest(Q8, np.uint8([0, 255, 10, 128]), 4, Labels())
    assert [(e["value"], e["real"]) for e in found] == [(255, 122.5), (128, 59), (10, 0), (0, -5)]
    assert real_value(Q8, 11) == 0.5


def test_labelled_values_are_shown_in_the_order_in_which_they_stand():
    labels = Labels(["a", "b", "c"], True)
    found = greatest(F32, np.float32([2, 0, 5, 1]), 3, labels)
    assert [(e["index"], e["value"], e["label"]) for e in found] == [(0, 2, "c"), (1, 0, "a"), (2, 5, None)]


@pytest.mark.parametrize(
    ("labels", "place", "value", "wanted"),
    [
        (Labels(), 3, 1.0, None),
        (Labels(["a", "b", "c"]), 0, 9.0, "a"),
        (Labels(["a", "b", "c"]), 5, 9.0, "c"),
        (Labels(["a", "b"], True), 0, 1.0, "b"),
        (Labels(["a", "b"], True), 0, 2.0, None),
        (Labels(["a", "b"], True), 0, -1.0, None),
    ],
)
def test_a_label_is_of_the_place_along_the_last_dimension_or_of_the_value(labels, place, value, wanted):
    assert labels.of(place, value) == wanted


@pytest.mark.parametrize(
    ("count", "shape", "told"),
    [
        (3, (1, 3), ""),
        (3, (5, 3), ""),
        (3, (1, 3, 1, 1), ""),
        (0, (1, 3), ""),
        (1, (1, 1), ""),
        (
            2,
            (1, 3),
            "has 2 labels, must have 3, one for each class: one label less is a list without the background class",
        ),
        (4, (1, 3), "has 4 labels, must have 3, one for each class: one label more is a list with a background"),
        (5, (1, 3), "has 5 labels, must have 3, one for each class"),
        (2, (), "has 2 labels, must have 1, one for each class: one label more"),
    ],
)
def test_labels_fit_where_there_is_one_for_each_class(count, shape, told):
    labels = Labels(["x"] * count)
    found = labels.misfit(np.zeros(shape))
    assert found.startswith(told) and bool(found) == bool(told)
    if told[-18:] == "one for each class":
        assert found == told
    assert Labels(["x"] * count, True).misfit(np.zeros(shape)) == ""


def test_a_summary_has_range_and_mean_of_steps_and_of_what_they_stand_for():
    assert summary(F32, X) == {
        "name": "y",
        "shape": [4],
        "type": "TENSOR_FLOAT32",
        "min": -1,
        "max": 7,
        "mean": 3,
    }
    assert summary(Q8, np.uint8([[10, 30]])) == {
        "name": "q",
        "shape": [1, 2],
        "type": "TENSOR_QUANT8_ASYMM",
        "min": 10,
        "max": 30,
        "mean": 20,
        "scale": 0.5,
        "zero_point": 10,
        "real": {"min": 0, "max": 10, "mean": 5},
    }
    empty = summary(Q8, np.zeros(0, np.uint8))
    assert (empty["min"], empty["mean"], empty["real"]) == (None, None, dict.fromkeys(("min", "max", "mean")))
    truth = summary(F32, np.array([True, False, True, True]))
    assert (truth["min"], truth["max"], truth["mean"]) == (0, 1, 0.75)


# -------------------------------------------------------------------------------------------------------------- the verb


def test_a_run_is_told_in_lines(capsys, tmp_path):
    shape = json.loads(called(capsys, "show", "tiny_conv", "--json")[0])["inputs"][0]["shape"]
    count = int(np.prod(shape))
    np.save(tmp_path / "x.npy", np.arange(count, dtype=np.float32).reshape(shape))
    out, err = called(capsys, "run", "tiny_conv", "-i", tmp_path / "x.npy", "-d", "reference", "--top", "2")
    lines = out.splitlines()
    assert lines[0] == "tiny_conv: 3 ops, 18,944 multiply-adds, float32 weights (20 KiB)"
    assert lines[3].endswith("  x.npy") and err == ""
    y = package.compile(package.load("tiny_conv"), devices="reference")(
        np.arange(count, dtype=np.float32).reshape(shape)
    )
    (output,) = [n for n, line in enumerate(lines) if line.startswith("Outputs ")]
    dims = ",".join(map(str, y.shape))
    spread = f"{y.min():.5g} {y.max():.5g} {y.mean(dtype=np.float64):.5g}"
    assert " ".join(lines[output + 1].split()).endswith(f" float32 [{dims}] {spread}")
    order = np.argsort(-y.ravel(), kind="stable")
    for line, place in zip(lines[output + 2 : output + 4], order, strict=False):
        assert line.split() == [f"{y.ravel()[place]:.6g}", f"#{place}"]
    assert lines[output + 5] == "Placement: 1 partition, 0 device transfers"
    assert lines[output + 7].split()[:4] == ["0", "reference", "3", "(all)"]
    assert lines[-1].startswith("Time: load ") and ", compile " in lines[-1] and ", inference " in lines[-1]


def test_a_run_is_told_in_json(capsys):
    found = json.loads(called(capsys, "run", "tiny_conv_uint8", "-d", "reference", "--json")[0])
    assert found["model"] == "tiny_conv_uint8" and [i["from"] for i in found["inputs"]] == ["random, seed 0"]
    assert set(found["time_ns"]) == {"load", "compile", "run"} and all(t > 0 for t in found["time_ns"].values())
    assert [s["device"] for s in found["steps"]] == ["reference"] and found["steps"][0]["time_ns"] > 0
    assert found["fallbacks"] == [] and "top" not in found["outputs"][0]
    found = json.loads(called(capsys, "run", "tiny_conv_uint8", "-d", "reference", "--json", "--top", "3")[0])
    assert len(found["outputs"][0]["top"]) == 3


def test_as_many_as_asked_are_shown_else_5_where_there_are_labels(capsys, tmp_path):
    shape = json.loads(called(capsys, "run", "tiny_conv", "-d", "reference", "--json")[0])["outputs"][0]["shape"]
    (tmp_path / "l.txt").write_text("\n".join(f"label {n}" for n in range(shape[-1])))
    words = "run", "tiny_conv", "-d", "reference", "--labels", tmp_path / "l.txt"
    for more, count in (((), 5), (("--top", "2"), 2), (("--top", "0"), 0)):
        (output,) = json.loads(called(capsys, *words, "--json", *more)[0])["outputs"]
        assert len(output.get("top", ())) == count
    for entry in json.loads(called(capsys, *words, "--json")[0])["outputs"][0]["top"]:
        assert entry["label"] == f"label {entry['index'] % shape[-1]}"
    lines = called(capsys, *words)[0].splitlines()
    assert sum(" label " in line for line in lines) == 5


@pytest.mark.parametrize("name", ["y.npy", "y.npz", "y.json"])
def test_outputs_are_written_as_the_name_says(capsys, tmp_path, name):
    called(capsys, "run", "tiny_conv", "-d", "reference", "-o", tmp_path / name)
    model = package.load("tiny_conv")
    compiled = package.compile(model, devices="reference")
    wanted = compiled(run.read_inputs(compiled.inputs, (), 0, run.InputOptions())[0].array)
    if name == "y.json":
        (found,) = json.loads((tmp_path / name).read_text()).values()
    elif name == "y.npy":
        found = np.load(tmp_path / name)
    else:
        with np.load(tmp_path / name) as loaded:
            found = next(iter(loaded.values()))
    np.testing.assert_array_equal(np.asarray(found, np.float32), wanted)


def test_an_output_of_another_form_is_refused(capsys, tmp_path):
    told = called(capsys, "run", "add4", "-d", "reference", "-o", tmp_path / "y.txt", code=3)[1]
    assert "must end in .npz, .json, or .npy for a single output" in told
    with pytest.raises(InvalidRequest, match=r"or \.npy for a single output"):
        run._write(tmp_path / "y.npy", [F32, F32], [X, X])
    with pytest.raises(InvalidRequest, match=r"output .*: No such file"):
        run._write(tmp_path / "no" / "y.json", [F32], [X])


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, run.InputOptions()),
        ({"fit": True}, run.InputOptions(fit=True)),
        ({"raw": True}, run.InputOptions(raw=True)),
        ({"span": "-1,2.5"}, run.InputOptions(-1, 2.5)),
        ({"span": "0,1", "fit": True, "fill": 114}, run.InputOptions(0, 1, True, fill=114)),
        ({"mean": "0.5,0.4,0.3", "std": "2"}, run.InputOptions(mean=(0.5, 0.4, 0.3), std=(2,))),
        ({"rate": 16000}, run.InputOptions(rate=16000)),
    ],
)
def test_options_of_pictures(given, wanted):
    plain = {"span": None, "fit": False, "raw": False, "mean": None, "std": None, "fill": 0, "rate": None}
    assert run._input_options({**plain, **given}) == wanted


@pytest.mark.parametrize("span", ["1", "a,b", "1,2,3", ""])
def test_a_range_is_two_numbers(capsys, span):
    assert "must be LOW,HIGH" in called(capsys, "run", "add4", f"--range={span}", code=2)[1]


def test_a_deadline_that_has_passed_is_exit_code_4(capsys):
    assert "deadline" in called(capsys, "run", "add4", "--deadline", "1e-9", code=4)[1]


def labelled(names: str, kind: str = "axis labels") -> Metadata:
    tensor = TensorMetadata(files=(AssociatedFile("l", kind=kind),))
    return Metadata(outputs=(tensor,), contents={"l": names.encode()})


def test_the_models_own_labels_are_used_where_they_fit(capsys):
    for names, kind, wanted in (
        ("a\nb\nc\nd", "axis labels", Labels(("a", "b", "c", "d"))),
        ("a\nb", "value labels", Labels(("a", "b"), True)),
        ("a\nb", "axis labels", Labels()),
    ):
        assert run._labels(None, [F32], [X], labelled(names, kind)) == [wanted]
        assert ("note: the model's own labels are not used: has 2 labels" in capsys.readouterr().err) == (
            wanted == Labels()
        )
    assert run._labels(None, [F32], [X], None) == [Labels()] and capsys.readouterr().err == ""


def test_why_labels_are_not_used_is_no_markup(capsys, monkeypatch):
    monkeypatch.setattr(Labels, "misfit", lambda *_: f"has [bold] {'names ' * 30}")
    run._labels(None, [F32], [X], labelled("a", "axis labels"))
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("note: the model's own labels are not used: has [bold] names")


def test_labels_of_a_file_are_for_outputs_with_as_many_classes_or_labelled_values(tmp_path):
    (tmp_path / "l").write_text("a\nb\nc\nd\n\n")
    names, other = ["a", "b", "c", "d"], X[:3]
    assert run._labels(str(tmp_path / "l"), [F32, F32], [X, other], None) == [Labels(names), Labels()]
    assert run._labels(str(tmp_path / "l"), [F32], [other], labelled("", "value labels")) == [Labels(names, True)]
    with pytest.raises(InvalidRequest, match=r"^labels .*l: has 4 labels, must have 3, .*"):
        run._labels(str(tmp_path / "l"), [F32], [other], None)
    with pytest.raises(InvalidRequest, match=r"for output y has 4 labels, .*; for output q has 4"):
        run._labels(str(tmp_path / "l"), [F32, Q8], [other, other], None)


def printed(capsys: Any, **facts: Any) -> list[str]:
    """What `run` prints of a model that ran on one device."""
    outputs = [X[:0], np.uint8([10, 30])]
    step = StepPlan("d", (0,))
    choice = Choice(0, 0, "d", "why", {}, {}, kind=ASKED)
    live = ExecutionStats(["d"])
    live.fell_back(0, "burnt out")
    placement = Placement(Partition((step,), (choice,), 0), live=live)
    cached = [CacheOutcome("d", "miss", facts.pop("miss", "why"))] * 2
    compiled: Any = SimpleNamespace(inputs=[F32], outputs=[F32, Q8], placement=placement, cache=cached)
    report: Any = SimpleNamespace(steps=[SimpleNamespace(device="d", operations=1, total=1500)], fallbacks=["one"])
    spent = {"load": 2_000_000, "compile": 3_000, "run": 1_600}
    given = [InputFromFile(X, "/a/b.png", "resized")]
    done = run.RunRecord("m", "m: 1 op", compiled, given, outputs, spent, report, [Labels(), Labels()], 1)
    run._print(done, verbose=False, **facts)
    return capsys.readouterr().out.splitlines()


def test_what_ran_is_printed_in_sections(capsys):
    assert printed(capsys) == [
        "m: 1 op",
        "",
        "Inputs",
        "  y  float32 [4]  b.png: resized",
        "",
        "Outputs               min  max  mean",
        "  y      float32 [0]",
        "  q      uint8 [2]      0   10     5",
        "              10 (30)  #1",
        "",
        "Placement: 1 partition, 0 device transfers",
        "  #  device  ops      latency",
        "  0  d       1 (all)  1.5 µs",
        "",
        "  partition 0 on d fell back once, last: burnt out",
        "",
        "cache  d: miss: why",
        "",
        "Time: load 2 ms, compile 3 µs (cache miss), inference 1.6 µs",
    ]
    assert not any(line.startswith("cache") for line in printed(capsys, miss="there is no entry"))


def test_indices_of_random_inputs_exist_and_impossible_ones_are_named(capsys, tmp_path):
    """A model whose open length is 1: ids + base must be one of 5 rows."""

    def file(name, base):
        constants = {"table": np.ones((5, 2), np.float32), "base": np.int64([base])}
        nodes = [node("Add", "ids base", "i"), node("Gather", "table i", "y")]
        made = model(nodes, {"ids": np.zeros(1, np.int64)}, constants, shapes={"ids": ["n"]})
        (tmp_path / name).write_bytes(made.SerializeToString())
        return tmp_path / name

    for words in (["run", file("near.onnx", 4)], ["bench", file("near.onnx", 4), "--iterations", 2, "--warmup", 0]):
        called(capsys, *words, "--device", "reference")
    far = file("far.onnx", 100_000)
    np.save(tmp_path / "ids.npy", np.int64([-99_999]))
    for words in (["run", far], ["bench", far, "--iterations", 2, "--warmup", 0]):
        _, said = called(capsys, *words, "--device", "reference", code=3)
        assert "error: input ids: no values were found" in said and "--input NAME=FILE" in said
        called(capsys, *words, "--device", "reference", "--input", tmp_path / "ids.npy")

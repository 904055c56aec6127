"""The command line as users meet it: output, JSON, exit codes."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from nnhal.cli import common
from nnhal.cli.main import NAMES, cli
from nnhal.zoo import maker
from tests.execution import run_nnhal, run_python
from tests.frontends.flat import Writer
from tests.frontends.test_tflite_metadata import LABELS, Said, pictured, said

EXAMPLE = str(Path(__file__).parents[2] / "examples" / "my_driver.py")


def nnhal(*arguments: str, code: int = 0) -> str:
    done = run_nnhal(*arguments)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code in (0, 1) else done.stdout + done.stderr


@pytest.fixture(scope="module")
def tiny() -> str:
    return str(maker.path("tiny_conv"))


VECTORS = "test", "vectors", "--vectors"


@pytest.mark.parametrize("verb", NAMES)
def test_every_verb_explains_itself_and_has_json(verb):
    result = CliRunner().invoke(cli, [verb, "--help"])
    assert result.exit_code == 0 and "--json" in result.output


def test_run_shows_outputs_placement_and_time(tiny):
    text = nnhal("run", tiny)
    assert "\nOutputs " in text and "\nPlacement: 1 partition" in text and "\nTime: load" in text


def test_run_gives_the_same_for_the_same_seed(tiny):
    first, second, other = (json.loads(nnhal("run", tiny, "--json", "--seed", s))["outputs"] for s in ("1", "1", "2"))
    assert first == second != other


def test_run_reads_and_writes_arrays(tiny, tmp_path):
    shape = json.loads(nnhal("show", tiny, "--json"))["inputs"][0]["shape"]
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    nnhal("run", tiny, "-i", str(tmp_path / "x.npy"), "-o", str(tmp_path / "y.npz"), "-d", "reference")
    nnhal("run", tiny, "-i", str(tmp_path / "x.npy"), "-o", str(tmp_path / "z.npz"), "-d", "litert")
    (y,), (z,) = (list(np.load(tmp_path / name).values()) for name in ("y.npz", "z.npz"))
    assert np.abs(y - z).max() < 1e-5


def test_run_takes_a_picture(tiny, tmp_path):
    from PIL import Image

    Image.new("RGB", (30, 20), "red").save(tmp_path / "red.png")
    text = nnhal("run", tiny, "-i", str(tmp_path / "red.png"), "--range=-1,1", "--top", "3")
    assert "red.png: resized 30x20 -> 8x8, values -1 to 1" in text


def test_run_with_a_driver_under_development():
    text = nnhal("run", "add4", "--driver", EXAMPLE)
    assert "  0  mine " in text and "1 (all)" in text


@pytest.mark.parametrize(("fallback", "warnings"), [("warn", 1), ("allow", 0)])
def test_run_warns_of_what_falls_back_in_one_line_on_stderr(fallback, warnings, tmp_path):
    (tmp_path / "broken.py").write_text(
        "from nnhal.drivers.reference import Reference\nclass Broken(Reference):\n    name = 'broken'\n"
        "    def prepare(self, model, hints): raise RuntimeError('out of order')\ndef device(): return Broken()\n"
    )
    arguments = ["run", "add4", "--driver", str(tmp_path / "broken.py"), "--fallback", fallback]
    command = [sys.executable, "-m", "nnhal.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    line = (
        "broken failed to prepare operations #0: device broken: prepare() raised RuntimeError: out of order; placing "
    )
    line += "them elsewhere"
    assert "broken failed to prepare operations #0: device broken" in done.stdout
    assert done.stderr.count(f"warning: {line}\n") == warnings and "Warning" not in done.stderr


def test_a_missing_file_is_exit_code_3():
    assert "no such file or zoo model" in nnhal("run", "nothing.tflite", code=3)


def test_an_error_in_json_names_type_status_and_code():
    error = json.loads(nnhal("run", "nothing.tflite", "--json", code=3))["error"]
    assert (error["type"], error["status"], error["code"]) == ("BadFile", "INVALID_ARGUMENT", "BAD_DATA")


def test_a_device_that_does_not_exist_is_exit_code_4(tiny):
    assert "is not known, must be one of" in nnhal("run", tiny, "--device", "abacus", code=4)


@pytest.mark.parametrize("words", [["run"], ["bench"], ["diff", "--device", "reference"]], ids=lambda words: words[0])
def test_a_negative_seed_is_refused(words, tiny):
    said = nnhal(*words, tiny, "--seed", "-1", code=2)
    assert "--seed" in said and "-1 is not in the range x>=0" in said


def test_wrong_usage_is_exit_code_2():
    nnhal("run", code=2)


def test_an_input_that_does_not_fit_is_exit_code_3(tiny, tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((2, 2)))
    assert "must be" in nnhal("run", tiny, "-i", str(tmp_path / "x.npy"), code=3)


def test_devices_lists_the_reference():
    names = {entry["name"]: entry for entry in json.loads(nnhal("devices", "--json"))}
    assert names["reference"]["type"] == "CPU" and names["litert"]["loads"]


def test_doctor_looks_for_what_matters():
    found = {entry["what"] for entry in json.loads(nnhal("doctor", "--json"))}
    assert {"memfd with seals", "landlock", "futex_waitv", "vector units", "device litert"} <= found


def test_show_is_stable_text(tiny):
    first = nnhal("show", tiny, "--all")
    assert first == nnhal("show", tiny, "--operations") and "CONV_2D(" in first


def test_show_begins_with_a_summary(tiny):
    text = nnhal("show", tiny)
    assert text.startswith("tiny_conv: 3 ops, 18,944 multiply-adds, float32 weights (20 KiB)\n  requires HAL 1.0: ")
    assert re.search(r"CONV_2D +1 +224 +13,824", text) and "CONV_2D(" not in text


def test_show_of_a_model_that_cannot_be_taken_says_what_and_why(tmp_path):
    from tests.frontends.flat import Writer

    net = Writer()
    x, y, z = (net.tensor([1, 4]) for _ in range(3))
    net.graph.tensors[x].name = "in[red]"
    net.operator("Strange", [x], [y])
    net.operator("ABS", [y], [z])
    net.ends([x], [z])
    path = tmp_path / "strange.tflite"
    path.write_bytes(net.bytes())
    text = nnhal("show", str(path))
    assert "NNAPI rejects 1 of the 2 operations" in text and re.search(r"Strange +#0 +is unknown", text)
    assert "in[red]" in text
    assert "cannot be taken" in nnhal("show", str(path), "--operations").splitlines()[0]
    nowhere = "NNAPI does not support the whole model, so it is not placed"
    for words, there in (
        (["--placement"], True),
        (["--placement", "--svg", str(tmp_path / "x.svg")], True),
        ([], False),
    ):
        assert (nowhere in CliRunner().invoke(cli, ["show", str(path), *words]).stderr.replace("\n", " ")) == there
    assert json.loads(nnhal("show", str(path), "--placement", "--json"))["placement"] is None
    document = json.loads(nnhal("show", str(path), "--json"))
    assert document["level"] is None and [bool(o["refused"]) for o in document["operations"]] == [True, False]


def test_show_says_what_the_file_says_about_itself(tmp_path):
    path = tmp_path / "pets.tflite"
    path.write_bytes(pictured(said(), members=LABELS))
    text = nnhal("show", str(path))
    assert "  Pets, v1, somebody, Apache-2.0: finds pets\n" in text
    assert "what to look at; image RGB; (value - 127.5) / 127.5; between" in text
    assert "3 labels: cat, dog, b[31mird; labels.txt (axis labels, names)\n" in text
    about = json.loads(nnhal("show", str(path), "--json"))["metadata"]
    assert (about["name"], about["inputs"][0]["mean"], about["outputs"][0]["labels"][:2]) == (
        "Pets",
        [127.5],
        ["cat", "dog"],
    )
    assert json.loads(nnhal("show", "tiny_conv", "--json"))["metadata"] is None


def test_metadata_is_shown_of_a_file_that_nnapi_cannot_take(tmp_path):
    path = tmp_path / "wide.tflite"
    path.write_bytes(pictured(said(mean=(1, 2, 3), std=(4, 5, 6)), kind="f8", members=LABELS))
    text = nnhal("show", str(path))
    assert "not supported: " in text and "(value - [1, 2, 3]) / [4, 5, 6]" in text and "3 labels" in text


def test_labels_that_cannot_be_read_are_said_to_be(tmp_path):
    path = tmp_path / "broken.tflite"
    content = pictured(said(), members=LABELS)
    path.write_bytes(content.replace(LABELS["labels.txt"], b"x" * len(LABELS["labels.txt"])))
    assert "labels cannot be read: " in nnhal("show", str(path))


def test_what_a_file_says_about_itself_is_no_terminals_business(tmp_path):
    s = Said()
    graph = s.table(f2=[s.table(f0="a\x1b]0;evil\x07[/x]", f1="[red]\u202e")])
    path = tmp_path / "evil.tflite"
    path.write_bytes(pictured(s.bytes(s.table(f0="\x1b[2J[bold]", f1="one\ntwo", f3=[graph]))))
    text = nnhal("show", str(path))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "  [2J[bold]: one\\ntwo\n" in text and "  [red]\n" in text


def test_what_cannot_be_written_is_said_before_the_work(tiny, tmp_path):
    missing = str(tmp_path / "no" / "x.svg")
    found = nnhal("show", tiny, "--svg", missing, code=3)
    assert "does not exist, must be a file that can be written" in found
    assert "must be a file" in nnhal("run", "nothing.tflite", "-o", missing, code=3)


def test_text_in_brackets_is_no_markup(tmp_path, capsys):
    common.table(["what[/x]"], [["pip install 'nnhal[litert]'"]], title="[/x]")
    common.print_progress("[/x] [red]")
    written = capsys.readouterr()
    assert "nnhal[litert]" in written.out and "[/x]" in written.out and "[/x] [red]" in written.err


def test_show_placement_says_why_and_why_not(tiny):
    text = nnhal("show", tiny, "--placement", "--operations")
    assert "# litert: declared" in text and "not reference: declared 1x reference time" in text


def test_show_dot_is_a_graph(tiny):
    assert nnhal("show", tiny, "--dot").startswith("digraph model {")


def test_diff_agrees_within_the_tolerance(tiny):
    assert "PASSED: litert agrees with reference on 3 of 3 intermediates" in nnhal("diff", tiny, "-d", "litert")


def test_diff_names_the_first_operation_out_of_tolerance(tiny):
    document = json.loads(nnhal("diff", tiny, "-d", "litert", "--rtol", "0", "--json", code=1))
    assert document["first_out_of_tolerance"] is not None


def test_differences_that_only_add_up_are_shown_and_decide_nothing():
    document = json.loads(nnhal("diff", "mobilenet_v1_int8", "-d", "litert", "--json"))
    assert document["first_out_of_tolerance"] is None and document["first_added_up"] is not None
    worst = max(o["added_up"]["worst"] for o in document["operands"])
    assert worst > 1 >= max(o["worst"] for o in document["operands"])


def test_an_operation_that_is_wrong_by_itself_is_told_from_those_behind_it(tmp_path):
    (tmp_path / "wrong.py").write_text(Path(EXAMPLE).read_text().replace("np.subtract", "lambda x, y: 1.1 * (x - y)"))
    w = Writer()
    x, one, two, three = (w.tensor([4]) for _ in range(4))
    for name, given, made in (("ADD", (x, x), one), ("SUB", (one, x), two), ("MUL", (two, two), three)):
        w.operator(name, given, [made], name.title())
    (tmp_path / "m.tflite").write_bytes(w.file([x], [three]))
    arguments = ["diff", str(tmp_path / "m.tflite"), "--driver", str(tmp_path / "wrong.py"), "-d", "mine"]
    document = json.loads(nnhal(*arguments, "--json", code=1))
    alone, added = zip(*((o["worst"], o["added_up"]["worst"]) for o in document["operands"]), strict=True)
    assert document["first_out_of_tolerance"] == document["first_added_up"] == "SUB #1"
    assert alone == pytest.approx((0, 0.1, 0), abs=1e-6) and added == pytest.approx((0, 0.1, 0.21), abs=1e-6)
    assert "FAILED: mine differs from reference in 1 operation, first in SUB #1" in nnhal(*arguments, code=1)


def test_diff_compares_what_the_device_takes_and_says_what_it_leaves(tmp_path):
    w = Writer()
    x, one, two, three = (w.tensor([4]) for _ in range(4))
    w.operator("ADD", [x, x], [one], "Add")
    w.operator("ABS", [one], [two], "Abs")
    w.operator("SUB", [two, x], [three], "Sub")
    (tmp_path / "m.tflite").write_bytes(w.file([x], [three]))
    arguments = ["diff", str(tmp_path / "m.tflite"), "--driver", EXAMPLE, "-d", "mine"]
    document = json.loads(nnhal(*arguments, "--json"))
    assert [(o["label"], o["worst"], o["added_up"]) for o in document["operands"]] == [
        ("ADD #0", 0, None),
        ("SUB #2", 0, None),
    ]
    assert [o["label"] for o in document["left_out"]] == ["ABS #1"] and document["left_out"][0]["reason"]
    text = nnhal(*arguments)
    assert "1 operation that mine rejects" in text and "\n  ABS #1: " in text and text.startswith("PASSED")
    assert "device mine rejects 1 operation: #1" in nnhal(*arguments[:-1], "reference", "--against", "mine", code=3)


def test_bench_compares_with_a_peer(tiny):
    document = json.loads(nnhal("bench", tiny, "--vs", "litert", "--iterations", "25", "--device", "litert", "--json"))
    assert document["ratio"]["low"] <= document["ratio"]["median"] <= document["ratio"]["high"]
    assert document["latency"]["nnhal"]["runs"] == 25
    for found in document["latency"].values():
        assert 0 < found["min_ns"] <= found["p50_ns"] <= found["p90_ns"] <= found["p99_ns"]
        assert found["load_ns"] > 0 < found["compile_ns"] and found["first_ns"] > 0


def test_bench_runs_as_often_and_as_many_at_once_as_asked(tiny):
    document = json.loads(nnhal("bench", tiny, "--iterations", "33", "--streams", "3", "-d", "reference", "--json"))
    found = document["latency"]["nnhal"]
    assert (document["streams"], found["runs"]) == (3, 33) and found["runs_per_second"] > 0
    assert "--streams with --vs" in nnhal("bench", tiny, "--streams", "2", "--vs", "litert", code=2)


def test_bench_shows_what_drivers_hold_beside_what_is_measured(tiny):
    options = "--iterations", "3", "--isolate", "-d", "reference"
    memory = json.loads(nnhal("bench", tiny, *options, "--json"))["memory"]
    assert memory["steps"][0]["weights_copied"] == 0 < memory["steps"][0]["weights_in_place"]
    assert memory["drivers_private_bytes"]["reference"] > 1 << 20
    text = nnhal("bench", tiny, *options)
    assert "private in the process of reference" in text and "weights copied" in nnhal(
        "bench", tiny, *options, "--verbose"
    )
    alone = json.loads(nnhal("bench", tiny, "--iterations", "3", "-d", "null", "--vs", "litert", "--json"))["memory"]
    assert alone["private_bytes"] is None and alone["drivers_private_bytes"] == {}


def test_bench_shows_each_operation_of_engines_that_tell(tiny):
    options = ("--profile", "--iterations", "3")
    document = json.loads(nnhal("bench", tiny, *options, "-d", "reference", "--json"))
    assert [entry["operations"] for entry in document["each"]] == [[0], [1], [2]]
    assert all(entry["p50_ns"] > 0 for entry in document["each"])
    assert "litert reports times of whole partitions only" in nnhal("bench", tiny, *options, "-d", "litert")
    assert "whole partitions only" not in nnhal("bench", tiny, *options, "-d", "reference")


def test_vectors_of_an_operation_are_run(vectors):
    (suite,) = json.loads(nnhal(*VECTORS, str(vectors), "--operation", "max_pool_2d", "--json"))["suites"]
    assert {case["operation"] for case in suite["cases"]} == {"MAX_POOL_2D"}
    assert suite["totals"]["passed"] == len(suite["cases"]) > 100


def test_vectors_on_the_example_driver_fail_nothing(vectors):
    document = json.loads(nnhal(*VECTORS, str(vectors), "--driver", EXAMPLE, "--operation", "add", "--json"))
    assert document["device"] == "mine"
    assert document["totals"]["failed"] == 0 and document["totals"]["passed"] > 0


def test_a_driver_by_a_relative_path_runs_isolated(vectors):
    driver = os.path.relpath(EXAMPLE)
    assert "  0  mine " in nnhal("run", "add4", "--driver", driver, "--isolate")
    chosen = "--driver", driver, "--isolate", "--operation", "add", "--published-only", "--json"
    assert json.loads(nnhal(*VECTORS, str(vectors), *chosen))["totals"]["failed"] == 0


@pytest.mark.parametrize(
    ("words", "like", "code"),
    [
        (["rnu", "x"], "did you mean run?", 2),
        (["run", "tiny_cnov"], "did you mean tiny_conv", 3),
        (["run", "tiny_conv", "--device", "litetr"], "did you mean litert?", 4),
        (["run", "tiny_conv", "--ouput", "x"], "hint: did you mean", 2),
    ],
)
def test_a_typing_error_is_answered_with_what_was_meant(words, like, code):
    assert like in nnhal(*words, code=code)


def test_without_an_engine_run_says_that_it_is_the_slow_reference_and_what_changes_that():
    hidden = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Hidden(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name.startswith(('ai_edge_litert', 'onnxruntime')): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Hidden()); from nnhal.cli import start; start()\n"
    )
    words = [sys.executable, "-c", hidden, "run", "add4"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    said = " ".join(done.stderr.split())
    assert "so it runs on the reference device (correct, slow)" in said and "pip install 'nnhal[litert]'" in said
    for chosen in (["--device", "reference"], ["--rule", "#0=reference"]):
        done = subprocess.run([*words, *chosen], capture_output=True, text=True, check=True)
        assert "on the reference" not in " ".join(done.stderr.split())


def test_a_control_c_while_the_command_is_imported_ends_it_as_one_later_does():
    code = (
        "import sys; from importlib.abc import MetaPathFinder\n"
        "class Struck(MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'nnhal.cli.main': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Struck()); from nnhal.cli import start; start()\n"
    )
    done = run_python(code, "run", "add4", check=False)
    assert (done.returncode, done.stderr) == (130, "error: interrupted\n")


def test_a_file_with_a_name_like_that_is_asked_for(tmp_path, monkeypatch):
    (tmp_path / "model.tflite").write_bytes(b"")
    (tmp_path / "modle.txt").write_bytes(b"")
    said = nnhal("show", str(tmp_path / "modle.tflite"), code=3)
    assert f"did you mean {tmp_path / 'model.tflite'}?" in said
    monkeypatch.chdir(tmp_path)
    assert "did you mean model.tflite?" in nnhal("show", "modle.tflite", code=3)
    assert "no such file" in nnhal("show", "no/such/folder.tflite", code=3)


def test_typing_errors_in_what_selects_vectors_are_asked_about(vectors):
    run = *VECTORS, str(vectors)
    said = nnhal(*run, "--operation", "max_pol_2d", code=2)
    assert "no case is selected by --operation MAX_POL_2D" in said and "did you mean MAX_POOL_2D" in said
    assert "did you mean deviceMemory?" in nnhal(*run, "--flag", "devicememory", code=3)
    said = " ".join(nnhal(*run, "--flag", "zzz", code=3).split())
    assert "must be one of" in said and "relaxed" in said

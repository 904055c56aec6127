"""The suite mlts: a tiny model passes on the reference; drivers that compute inaccurately fail where they should."""

import csv
import hashlib
import logging
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from nnhal import zoo
from nnhal.base.codes import OperandType
from nnhal.base.errors import InvalidArgument
from nnhal.base.operands import Array
from nnhal.conformance.suites.mlts import Mlts, _alternating, accuracy, data, loadgen, report, timing, workload
from nnhal.conformance.suites.run import run_suite
from nnhal.conformance.suites.suite import CaseOutcome, NotApplicable, SuiteRun
from nnhal.measure.peers import LiteRT
from nnhal.runtime.arguments import Spec
from nnhal.zoo import maker
from tests.cli.test_run import labelled
from tests.suites.faulty.application import DRIVER
from tests.suites.faulty.driver import VARIABLE
from tests.suites.faulty.driver.faults import MLTS, table

FAULTS = [  # of the catalogue, and what fails
    (
        "scores-shifted",
        "accuracy",
        "8.3% of 12 inputs, the reference's is 91.7%, must be at most 1 input below",
    ),
    ("scores-inaccurate", "accuracy", "greatest error is 0.002 of the output's greatest magnitude"),
    (
        "scores-of-one-input",
        "accuracy",
        "(output 0, input 6 of 12), must be at most 0.0005",
    ),
    ("scores-nan", "accuracy", "top-1 accuracy"),
    ("restored-reversed", "compile", "restored from the cache"),
    ("restored-reversed-once", "compile", "restored from the cache"),
    ("scores-of-one-run", "loadgen", "in LoadGen's scenarios: greatest error is 0."),
    ("scores-sink", "latency", "executions: greatest error is 0.1"),
    ("scores-sink-late", "loadgen", "in LoadGen's scenarios: greatest error is 0.1"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of ten classes over 8x8 pictures, as a file."""
    path = tmp_path_factory.mktemp("model") / "tiny.tflite"
    with maker.opened("tiny_conv") as file:
        path.write_bytes(file.read())
    return path


@pytest.fixture(scope="module")
def samples(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder of inputs, and labels of which LiteRT's interpreter gets all but the first."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(1)
    engine, lines = LiteRT(model, 1), []
    for number in range(12):
        x = rng.uniform(-1, 1, (8, 8, 3)).astype(np.float32)
        np.save(folder / f"{number:02}.npy", x)
        best = int(engine([x[None]])[0].argmax())
        lines.append(f"{number:02} {(best + 1) % 10 if number == 0 else best}")
    labels = tmp_path_factory.mktemp("labels") / "labels.txt"
    labels.write_text("\n".join(lines))
    return folder, labels


def outcomes(run: SuiteRun) -> dict[str, CaseOutcome]:
    return {each.name: each for progress in run_suite("mlts", run, 2) for each in progress.outcomes}


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], tuple[str, ...]]:
    """A driver of the catalogue by its name, as the drivers of a run."""

    def driver_of(name: str) -> tuple[str, ...]:
        monkeypatch.setenv(VARIABLE, name)
        return (str(DRIVER),)

    return driver_of


def test_a_labelled_model_passes_on_the_reference_and_is_reported(
    model: Path, samples: tuple[Path, Path], tmp_path: Path
) -> None:
    folder, labels = samples
    run = SuiteRun(model=str(model), data=str(folder), labels=str(labels), report=str(tmp_path), scale=0.05)
    found = outcomes(run)
    assert {name: (each.verdict, each.reason) for name, each in found.items() if each.verdict != "passed"} == {}
    assert list(found) == [f"tiny/{part}" for part in ("accuracy", "compile", "latency", "loadgen")]
    measured = found["tiny/accuracy"].found
    for side in ("device", "engine"):
        assert measured[side]["top1"] == 11 / 12 and measured[side]["changed"] == 0
    times = found["tiny/latency"].found["device"]
    assert 0 < times["p50_ms"] <= times["p90_ms"] <= times["p99_ms"] <= times["p99.9_ms"]
    assert found["tiny/loadgen"].found["device"]["SingleStream"]["answered"] >= 1
    with (tmp_path / report.CSV).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["engine"] for row in rows] == ["reference", "reference (CPU)", "litert called directly"]
    assert [row["top-1"] for row in rows] == ["0.916667"] * 3
    page = (tmp_path / report.HTML).read_text()
    HTMLParser().feed(page)
    assert page.count("<svg") == 1
    assert not re.findall(r'(?:src|href)="(?!#)', page.replace("xlink:href", "href"))


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("fault", "part", "said"), FAULTS)
def test_a_driver_that_computes_inaccurately_fails(
    fault: str, part: str, said: str, model: Path, samples: tuple[Path, Path], planted: Callable[[str], tuple[str, ...]]
) -> None:
    folder, labels = samples
    found = outcomes(
        SuiteRun(
            drivers=planted(fault),
            model=str(model),
            data=str(folder),
            labels=str(labels),
            scale=0.02,
            pattern=f"/{part}$",
        )
    )
    (outcome,) = found.values()
    assert outcome.verdict == "failed", outcome
    assert said in outcome.reason
    assert outcome.found["data"].startswith("12 files")


def test_a_driver_that_is_called_reference_is_not_judged_by_itself(model: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver.py"
    driver.write_text(f"""import sys

sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.suites.faulty.driver.models import Models, ScoresShifted


class Device(Models):
    name, engine = "reference", ScoresShifted


device = Device
""")
    run = SuiteRun(drivers=(str(driver),), model=str(model), scale=0.02, pattern="/accuracy$")
    (outcome,) = outcomes(run).values()
    assert outcome.verdict == "failed" and "another class than on the reference" in outcome.reason, outcome


def test_every_fault_of_a_whole_model_has_its_part_and_reason() -> None:
    tested = {fault for fault, *_ in FAULTS}
    assert tested == {each.name for each in table().values() if MLTS in each.seen_by} - {"saved-in-vain"}


def test_a_driver_without_a_fault_passes(model: Path, planted: Callable[[str], tuple[str, ...]]) -> None:
    pattern = "accuracy|compile|latency"
    found = outcomes(SuiteRun(drivers=planted("models-healthy"), model=str(model), scale=0.02, pattern=pattern))
    assert [each.verdict for each in found.values()] == ["passed"] * 3, found
    assert found["tiny/compile"].found["device"]["restore_ms"] is not None


def test_a_model_that_the_device_rejects_is_unsupported(model: Path) -> None:
    found = outcomes(SuiteRun(device="sample-minimal", model=str(model), scale=0.02))
    assert {each.verdict for each in found.values()} == {"unsupported"}
    assert all("sample-minimal" in each.reason for each in found.values())


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("magika", "nnhal models magika"),
        ("efficientnet_lite0_int8", "nnhal models efficientnet_lite0_int8 imagenet_pictures"),
    ],
)
def test_a_model_that_is_not_on_the_machine_is_skipped_with_the_command_that_fetches_it(
    name: str, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    (outcome,) = outcomes(SuiteRun(pattern=f"^{name}/accuracy$")).values()
    assert outcome.verdict == "skipped" and f"`{command}`" in outcome.reason


def test_pictures_of_imagenet_are_read_with_their_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from PIL import Image

    wheel = tmp_path / "imagenet_pictures.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, colour in (("imagenet_01_7.png", 255), ("imagenet_00_243.png", 127), ("mnist_00_3.png", 0)):
            with archive.open(f"foolbox/data/{name}", "w") as file:
                Image.new("RGB", (4, 4), (colour, 0, 95)).save(file, "png")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    monkeypatch.setitem(zoo._TABLE, "imagenet_pictures", replace(zoo.entry("imagenet_pictures"), sha256=digest))
    monkeypatch.setenv("NNHAL_MODELS", str(tmp_path))
    spec = Spec("x", OperandType.TENSOR_FLOAT32, (1, 2, 2, 3), np.dtype(np.float32), 0.0, 0)
    inputs, labels, about = data.imagenet(spec)
    assert labels == [243, 7] and about.startswith("2 labelled pictures of ImageNet")
    assert [each[0].reshape(4, 3)[3].tolist() for each in inputs] == [[0, -127 / 128, -0.25], [1, -127 / 128, -0.25]]


@pytest.mark.models
@pytest.mark.parametrize("scheme", ["", "_int8", "_uint8"])
def test_efficientnet_lite0_knows_pictures_of_imagenet(scheme: str) -> None:
    """LiteRT, and no kernel of nnhal, runs it; PyTorch with the package's own code gets 18 and 19 of 20."""
    run = SuiteRun()
    try:
        work = workload.load(f"efficientnet_lite0{scheme}", run)
    except NotApplicable as error:
        pytest.skip(str(error))
    own, specs = LiteRT(work.path, 1), work.reference.outputs
    found = [own(each) for each in work.inputs]
    judged = accuracy.measure(specs, found, found, work.labels, False)
    assert judged.rows == 20 and judged.right1 >= 16 and judged.right5 >= 18
    first, second = work.labels[:2]
    swapped = [[each[0].copy()] for each in found]
    for (scores,) in swapped:
        scores[..., [first, second]] = scores[..., [second, first]]
    said = list(accuracy.problems(accuracy.measure(specs, swapped, found, work.labels, False), judged, False))
    assert said[0].startswith(f"top-1 accuracy is {(judged.right1 - 2) / 20:.1%} of 20 inputs")


def spec_of(type: OperandType, dtype: object, scale: float = 0.0) -> Spec:
    return Spec("y", type, (1, 4), np.dtype(dtype), scale, 0)  # type: ignore[call-overload]


FLOATS = spec_of(OperandType.TENSOR_FLOAT32, np.float32)
STEPS = spec_of(OperandType.TENSOR_QUANT8_ASYMM, np.uint8, 0.5)


def measured(spec: Spec, found: Sequence[Sequence[float]], expected: Sequence[Sequence[float]]) -> accuracy.Accuracy:
    def outputs(rows: Sequence[Sequence[float]]) -> list[list[Array]]:
        return [[np.array([row], spec.dtype)] for row in rows]

    return accuracy.measure([spec], outputs(found), outputs(expected), (), False)


def test_errors_of_quantised_outputs_are_in_steps_and_in_real_values() -> None:
    off = measured(STEPS, [[10, 20, 30, 44]], [[10, 20, 30, 40]])
    assert (off.lsb, off.lsb_rms, off.greatest, off.mse) == (4.0, 2.0, 2.0, 1.0)
    assert off.relative is None and (off.top1, off.changed) == (1.0, 0)


def test_a_class_among_equal_scores_of_the_reference_has_not_changed() -> None:
    off = measured(STEPS, [[9, 8, 0, 0], [0, 0, 7, 0]], [[9, 9, 0, 0], [0, 9, 0, 0]])
    assert (off.changed, off.top1, off.top5) == (1, 0.5, 1.0)
    assert measured(STEPS, [[8, 9, 0, 0]], [[9, 9, 0, 0]]).changed == 0


def test_a_nan_and_another_shape_are_beyond_every_bound() -> None:
    for found in ([np.nan, 0, 0, 1], [0, 0, 1]):
        off = measured(FLOATS, [found], [[0, 0, 0, 1]])
        assert off.greatest == np.inf
        assert list(accuracy.problems(off, off, False))


def test_percentiles_are_those_of_the_calls() -> None:
    found = timing.summary(5_000_000, [n * 1_000_000 for n in range(1, 1002)])
    assert [found[f"p{q}_ms"] for q in ("50", "90", "99", "99.9")] == pytest.approx([501, 901, 991, 1000])
    assert (found["first_ms"], found["min_ms"], sum(found["counts"])) == (5.0, 1.0, 991)


@pytest.mark.parametrize(("milliseconds", "queries"), [(1, 32), (125, 32), (500, 8), (5000, 4)])
def test_a_slow_device_has_fewer_queries(milliseconds: int, queries: int) -> None:
    assert loadgen.queries(milliseconds * 1_000_000) == queries


def test_figures_of_loadgen_are_read_from_its_summary() -> None:
    text = "Scenario : SingleStream\n90.0th percentile latency (ns) : 1234\nResult is : INVALID\n  Min queries : yes\n"
    assert loadgen.figures(text) == {"single_stream_p90_ns": 1234.0, "result": "INVALID"}


def test_without_matplotlib_the_csv_is_written_and_a_warning_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    (tmp_path / report.HTML).write_text("of an earlier run")
    times = timing.summary(1, [1, 2, 3])
    case = CaseOutcome("mlts", "m/latency", "passed", found={"model": "m", "part": "latency", "device": times})
    with caplog.at_level(logging.WARNING, "nnhal"):
        Mlts().finish(SuiteRun(report=str(tmp_path)), [case])
    assert [file.name for file in tmp_path.iterdir()] == [report.CSV]
    assert "pip install 'nnhal[plots]'" in caplog.text


def test_the_lines_for_people_have_accuracy_and_times_of_each_engine() -> None:
    times = timing.summary(2_000_000, [n * 1_000_000 for n in range(1, 1002)])
    times["p99_ms"] *= 2
    engines = dict.fromkeys(("device", "reference", "engine"), times)
    found = {"model": "m", "part": "latency", "engine_name": "litert", **engines}
    right = {"model": "m", "part": "accuracy", "device": {"top1": 0.5}}
    cases = [
        CaseOutcome("mlts", "m/accuracy", "passed", found=right),
        CaseOutcome("mlts", "m/latency", "passed", found=found),
        CaseOutcome("mlts", "n/latency", "unsupported", "no"),
    ]
    assert Mlts().notes(cases) == [
        "m, the device: top-1 50.0%, first 2 ms, p50 501 ms, p99 1,982 ms",
        "m, litert called directly: first 2 ms, p50 501 ms, p99 1,982 ms",
    ]


def test_the_lines_for_people_have_the_reference_where_labels_judge_it() -> None:
    given = {"device": (0.5, 0.75), "reference": (0.75, 1.0)}
    sides = {side: {"inputs": 4, "top1": top1, "top5": top5} for side, (top1, top5) in given.items()}
    case = CaseOutcome("mlts", "m/accuracy", "passed", found={"model": "m", "top-1 of": "labels", **sides})
    assert Mlts().notes([case]) == [
        "m, the device: top-1 50.0%, top-5 75.0% of 4 labels",
        "m, reference (CPU): top-1 75.0%, top-5 100.0% of 4 labels",
    ]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"data": "d"}, "must come with --model"),
        ({"model": "M", "labels": "l"}, "must come with --data"),
        ({"model": "no_such_model"}, "must be a .tflite or .onnx file"),
        ({"model": "M", "data": "no/such/folder"}, "must be a folder"),
    ],
)
def test_arguments_that_do_not_go_together_are_rejected(given: dict[str, str], said: str, model: Path) -> None:
    run = SuiteRun(**{key: str(model) if value == "M" else value for key, value in given.items()})  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=said):
        workload.names(run)


def test_each_input_needs_a_label_and_each_label_an_input(samples: tuple[Path, Path], tmp_path: Path) -> None:
    folder, labels = samples
    assert data.labelled(folder, str(labels))[1][1:] == [
        line.split()[1] for line in labels.read_text().splitlines()[1:]
    ]
    fewer = tmp_path / "fewer.txt"
    fewer.write_text("00.npy 1\n")
    with pytest.raises(InvalidArgument, match=r"01\.npy has no label.*missing: 11"):
        data.labelled(folder, str(fewer))
    more = tmp_path / "more.txt"
    more.write_text(labels.read_text() + "\nother 1\n")
    with pytest.raises(InvalidArgument, match="other is not in"):
        data.labelled(folder, str(more))
    other = tmp_path / "copy"
    shutil.copytree(folder, other)
    (other / "00.npy").rename(other / "two words.npy")
    first, *lines = labels.read_text().splitlines()
    named = tmp_path / "named.txt"
    named.write_text("\n".join([f"two words.npy\t{first.split()[1]}", *lines]), "utf-8-sig")
    assert sorted(data.labelled(other, str(named))[1]) == sorted(data.labelled(folder, str(labels))[1])
    (other / "note.txt").write_text("no input")
    assert len(data.labelled(other, "")[0]) == 12


@pytest.fixture
def classes(samples: tuple[Path, Path], tmp_path: Path) -> Path:
    """The inputs of `samples` in a folder for each class."""
    folder, labels = samples
    for name, label in (line.split() for line in labels.read_text().splitlines()):
        (tmp_path / "classes" / label).mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / f"{name}.npy", tmp_path / "classes" / label)
    return tmp_path / "classes"


def test_folders_of_classes_are_labels(model: Path, samples: tuple[Path, Path], classes: Path) -> None:
    files, labels = data.labelled(classes, "")
    assert [(file.name, label) for file, label in zip(files, labels, strict=True)] == sorted(
        ((f"{name}.npy", label) for name, label in (line.split() for line in samples[1].read_text().splitlines())),
        key=lambda each: each[::-1],
    )
    run = SuiteRun(model=str(model), data=str(classes), scale=0.02, pattern="/accuracy$")
    (outcome,) = outcomes(run).values()
    assert outcome.found["top-1 of"] == "labels" and outcome.found["device"]["top1"] == 11 / 12


def test_a_class_that_the_model_does_not_have_is_an_error_that_names_it(model: Path, classes: Path) -> None:
    next(classes.iterdir()).rename(classes / "dog")
    (outcome,) = outcomes(SuiteRun(model=str(model), data=str(classes), pattern="/accuracy$")).values()
    assert outcome.verdict == "skipped" and "label is 'dog', must be the place of its score" in outcome.reason


def test_folders_of_classes_beside_something_else_are_an_error(samples: tuple[Path, Path], classes: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"a folder for each class and labels is .*must .* without --labels"):
        data.labelled(classes, str(samples[1]))
    (classes / "empty").mkdir()
    with pytest.raises(InvalidArgument, match=r"classes/empty has no inputs, must have pictures"):
        data.labelled(classes, "")
    (classes / "empty").rename(classes / ".hidden")
    (classes / "note.txt").write_text("no input")
    assert len(data.labelled(classes, "")[0]) == 12
    shutil.copy(samples[0] / "00.npy", classes / "more.npy")
    with pytest.raises(InvalidArgument, match=r"has more\.npy beside the folder \d of inputs, must have all inputs in"):
        data.labelled(classes, "")
    (classes.parent / "none").mkdir()
    with pytest.raises(InvalidArgument, match=r"none has no inputs, must have .* or a folder of them for each class"):
        data.labelled(classes.parent / "none", "")


def test_a_label_that_is_like_one_of_the_model_is_suggested() -> None:
    scores = Spec("y", OperandType.TENSOR_FLOAT32, (1, 2), np.dtype(np.float32), 0.0, 0)
    said = labelled("tabby cat\nred dog")
    assert data.indices(["red dog", "0"], said, scores) == [1, 0]
    with pytest.raises(InvalidArgument, match=r"label is 'red_dog', .*a label of the model's metadata.*red dog"):
        data.indices(["red_dog"], said, scores)


def test_a_picture_fills_the_range_of_the_input(tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (5, 3), (255, 0, 128)).save(tmp_path / "x.png")
    spec = Spec("x", OperandType.TENSOR_FLOAT32, (1, 2, 2, 3), np.dtype(np.float32), 0.0, 0)
    (array,) = data.read(tmp_path / "x.png", [spec], None)
    assert array.shape == (1, 2, 2, 3)
    np.testing.assert_allclose(array[0, 0, 0], [1, 0, 128 / 255], atol=1e-6)
    whole = Spec("x", OperandType.TENSOR_QUANT8_ASYMM_SIGNED, (1, 3, 2, 2), np.dtype(np.int8), 0.5, 3)
    (stored,) = data.read(tmp_path / "x.png", [whole], None)
    assert stored[0, :, 0, 0].tolist() == [127, -128, 0]


def test_a_model_that_a_device_saves_must_be_restored(model: Path, planted: Callable[[str], tuple[str, ...]]) -> None:
    run = SuiteRun(drivers=planted("saved-in-vain"), model=str(model), scale=0.02, pattern="/compile$")
    (outcome,) = outcomes(run).values()
    assert outcome.verdict == "failed"
    assert "saved the model, but it is not restored: prepare_from_cache() raised RuntimeError: cannot" in outcome.reason


def test_a_device_that_saves_nothing_passes(model: Path, planted: Callable[[str], tuple[str, ...]]) -> None:
    run = SuiteRun(drivers=planted("models-unsaved"), model=str(model), scale=0.02, pattern="/compile$")
    (outcome,) = outcomes(run).values()
    assert outcome.verdict == "passed", outcome


def test_latency_is_of_all_inputs_alternating(samples: tuple[Path, Path], model: Path) -> None:
    seen: list[Array] = []
    run = _alternating(lambda inputs: seen.append(inputs[0]), workload.load(model.stem, SuiteRun(model=str(model))))
    for _ in range(2 * workload.SAMPLES):
        run()
    assert len({x.tobytes() for x in seen}) == workload.SAMPLES
    assert [x is y for x, y in zip(seen[: workload.SAMPLES], seen[workload.SAMPLES :], strict=True)] == [
        True
    ] * workload.SAMPLES


@pytest.mark.parametrize(
    ("shape", "label", "said"),
    [
        ((1, 4), "4", "must be from 0 to 3: output 0 has 4 scores"),
        ((1, 2, 4), "0", "must be one row of scores"),
        ((1, 1), "0", "must be one row of scores"),
        ((1, 4), "-1", "must be the place of its score"),
        ((1, 4), "cat", "must be the place of its score"),
    ],
)
def test_a_label_is_the_place_of_a_score(shape: tuple[int, ...], label: str, said: str) -> None:
    scores = Spec("y", OperandType.TENSOR_FLOAT32, shape, np.dtype(np.float32), 0.0, 0)
    with pytest.raises(InvalidArgument, match=said):
        data.indices([label], None, scores)
    assert data.indices([], None, scores) == []


def test_labels_may_have_tabs_and_each_name_once(samples: tuple[Path, Path], tmp_path: Path) -> None:
    folder, labels = samples
    tabs = tmp_path / "tabs.txt"
    tabs.write_text(labels.read_text().replace(" ", "\t"))
    assert data.labelled(folder, str(tabs)) == data.labelled(folder, str(labels))
    twice = tmp_path / "twice.txt"
    twice.write_text(f"{labels.read_text()}\n03 1\n")
    with pytest.raises(InvalidArgument, match=r"twice\.txt:13 is '03 1', must be the only line of 03"):
        data.labelled(folder, str(twice))


@pytest.mark.parametrize("name", ["junk.npy", "junk.npz"])
def test_a_file_without_arrays_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(b"no arrays are here")
    with pytest.raises(InvalidArgument, match=f"{name} cannot be read: (?!.*pickle)"):
        data.shapes_of(file)

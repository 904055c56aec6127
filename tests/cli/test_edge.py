"""The command line at the edge of a model: the file's own types, pictures, labels, bundles, other formats."""

import json
import zipfile

import numpy as np
import pytest
from PIL import Image

from nnhal.zoo import maker
from tests.cli.test_cli import nnhal
from tests.cli.test_run import called
from tests.frontends.flat import Writer, litert
from tests.frontends.test_tflite_edge import looked_up
from tests.frontends.test_tflite_metadata import LABELS, VALUE, opened, pictured, said

PIXELS = np.array([[[0, 128, 255], [10, 20, 30]], [[40, 50, 60], [70, 80, 90]]], np.uint8)


@pytest.fixture
def picture(tmp_path) -> str:
    Image.fromarray(PIXELS).save(tmp_path / "p.png")
    return str(tmp_path / "p.png")


def saved(tmp_path, content: bytes, name: str = "m.tflite") -> str:
    (tmp_path / name).write_bytes(content)
    return str(tmp_path / name)


def given_by(tmp_path, model: str, *options: str) -> tuple[np.ndarray, dict]:
    """The outputs of a run, which are the means of what the picture was made to, and its document."""
    document = json.loads(nnhal("run", model, "-d", "reference", "-o", str(tmp_path / "y.npz"), "--json", *options))
    (found,) = np.load(tmp_path / "y.npz").values()
    return found, document


# --------------------------------------------------------------------------------------------------------------- pictures


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "quant", "options", "steps"),
    [
        ("u1", {"scale": 1 / 128, "zero": 128}, [], lambda p: p),
        ("i1", {"scale": 1 / 128, "zero": 0}, [], lambda p: p - 128),
        ("u1", {"scale": 1 / 255, "zero": 0}, [], lambda p: p),
        (
            "u1",
            {"scale": 1 / 128, "zero": 128},
            ["--range=-1,1"],
            lambda p: np.clip((p / 127.5 - 1) * 128 + 128, 0, 255),
        ),
        ("u1", {"scale": 1 / 64, "zero": 64}, ["--range=0,1"], lambda p: p / 255 * 64 + 64),
        ("u1", {"scale": 1 / 64, "zero": 64}, ["--raw"], lambda p: p),
        ("i1", {"scale": 1 / 64, "zero": 5}, ["--raw"], lambda p: p - 128),
        ("i2", {"scale": 2**-14}, [], lambda p: p / 255 * 2**14),
        ("i2", {"scale": 2**-14}, ["--range=-1,1"], lambda p: (p / 127.5 - 1) * 2**14),
        ("i2", {"scale": 2**-14}, ["--raw"], lambda p: p),
    ],
)
def test_a_picture_is_quantised_by_the_scale_of_the_input(tmp_path, picture, kind, quant, options, steps):
    w = Writer()
    x, axes, y = w.tensor([1, 2, 2, 3], kind, **quant), w.tensor([2], "i4", [1, 2]), w.tensor([1, 3], kind, **quant)
    w.operator("MEAN", [x, axes], [y], "Reducer")
    found, _ = given_by(tmp_path, saved(tmp_path, w.file([x], [y])), "-i", picture, *options)
    expected = steps(PIXELS.astype("f8")).mean((0, 1))
    assert np.abs(found[0] - expected).max() <= 1


@pytest.mark.parametrize(
    ("options", "real"),
    [([], lambda p: (p - 100) / 50), (["--range=0,1"], lambda p: p / 255), (["--raw"], lambda p: p)],
)
def test_metadata_normalises_a_picture_unless_told_otherwise(tmp_path, picture, options, real):
    model = saved(tmp_path, pictured(said((100.0,), (50.0,))))
    found, document = given_by(tmp_path, model, "-i", picture, *options)
    assert np.abs(found[0] - real(PIXELS.astype("f8")).mean((0, 1))).max() < 1e-4
    assert ("(metadata)" in document["inputs"][0]["from"]) == (not options)


def test_each_channel_may_have_a_mean_of_its_own(tmp_path, picture):
    model = saved(tmp_path, pictured(said((1.0, 2.0, 3.0), (4.0, 5.0, 6.0))))
    found, _ = given_by(tmp_path, model, "-i", picture)
    assert np.abs(found[0] - ((PIXELS - [1, 2, 3]) / [4, 5, 6]).mean((0, 1))).max() < 1e-4


def test_raw_and_a_range_contradict_each_other(tmp_path, picture):
    model = saved(tmp_path, pictured(said()))
    assert "is given with --range, --mean or --std, must be without" in nnhal(
        "run", model, "-i", picture, "--raw", "--range=0,1", code=2
    )


# ------------------------------------------------------------------------------------------------------ labels and values


def test_labels_of_the_file_stand_beside_the_greatest_elements(tmp_path, picture):
    model = saved(tmp_path, pictured(said(), members=LABELS))
    _, document = given_by(tmp_path, model, "-i", picture)
    means = PIXELS.mean((0, 1))
    order = np.argsort(-means)
    names = ["cat", "dog", "b[31mird"]
    assert [t["label"] for t in document["outputs"][0]["top"]] == [names[i] for i in order]
    assert "bird" not in nnhal("run", model, "-i", picture) and "dog" in nnhal("run", model, "-i", picture)


def test_labels_of_values_are_found_by_the_value(tmp_path, picture):
    model = saved(tmp_path, pictured(said((0.0,), (60.0,), VALUE), members=LABELS))
    found, document = given_by(tmp_path, model, "-i", picture)
    names = ["cat", "dog", "b[31mird"]
    assert [t["label"] for t in document["outputs"][0]["top"]] == [names[int(v)] for v in found[0]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a"], "has 1 labels, must have 3, one for each class\n"),
        ([], "holds none, must have one a line"),
    ],
)
def test_labels_of_another_number_than_classes_are_an_error(tmp_path, lines, message):
    model, labels = saved(tmp_path, pictured(said())), tmp_path / "labels.txt"
    labels.write_text("\n".join(lines))
    assert message in nnhal("run", model, "--labels", str(labels), code=3)


def test_labels_are_for_the_outputs_that_have_as_many_classes(tmp_path):
    w = Writer()
    x, five, two = w.tensor([1, 7]), w.tensor([1, 5]), w.tensor([1, 2])
    w.operator("SPLIT_V", [x, w.tensor([2], "i4", [5, 2]), w.tensor([], "i4", 1)], [five, two], "SplitV", numSplits=2)
    model, labels = saved(tmp_path, w.file([x], [five, two])), tmp_path / "labels.txt"
    labels.write_text("cat\ndog\n\n")
    first, second = json.loads(nnhal("run", model, "--labels", str(labels), "--top", "5", "--json"))["outputs"]
    assert {t["label"] for t in first["top"]} == {None} and {t["label"] for t in second["top"]} == {"cat", "dog"}
    labels.write_text("cat\ndog\nbird")
    assert "for output t1 has 3 labels, must have 5" in nnhal("run", model, "--labels", str(labels), code=3)


def test_labels_of_the_model_that_do_not_fit_are_noted_and_not_used(tmp_path, capfd):
    from nnhal.cli.main import main

    model = saved(tmp_path, pictured(said(), members={"labels.txt": b"cat\ndog\n"}))
    with pytest.raises(SystemExit):
        main(["run", model, "--json", "--top", "1"])
    out, err = capfd.readouterr()
    assert json.loads(out)["outputs"][0]["top"][0]["label"] is None
    assert "note: the model's own labels are not used: has 2 labels, must have 3" in err


def test_quantised_outputs_are_shown_as_real_values_beside_steps():
    (made,) = json.loads(nnhal("run", "tiny_conv_int8", "--json", "--top", "2"))["outputs"]
    scale, zero = made["scale"], made["zero_point"]
    for what in ("min", "max", "mean"):
        assert made["real"][what] == pytest.approx((made[what] - zero) * scale)
    assert all(t["real"] == pytest.approx((t["value"] - zero) * scale) for t in made["top"])
    (row,) = [line.split() for line in nnhal("run", "tiny_conv_int8").splitlines() if f"  {made['name']} " in line]
    assert row[-3:] == [f"{made['real'][what]:.5g}" for what in ("min", "max", "mean")]


# --------------------------------------------------------------------------------------------------- types, bundles, notes


def test_run_and_diff_take_64_bit_integers_and_scalars(tmp_path):
    model = saved(tmp_path, looked_up())
    np.save(tmp_path / "ids.npy", np.array([3, 0, 2]))
    nnhal("run", model, "-i", str(tmp_path / "ids.npy"), "-o", str(tmp_path / "y.npz"))
    most, back = np.load(tmp_path / "y.npz").values()
    expected = litert(looked_up(), np.array([3, 0, 2]))
    for found, right in zip((most, back), expected, strict=True):
        assert (found.shape, found.dtype, found.tolist()) == (right.shape, right.dtype, right.tolist())
    assert "agrees" in nnhal("diff", model, "-d", "litert", "-i", str(tmp_path / "ids.npy"))
    np.save(tmp_path / "far.npy", np.array([1 << 40, 0, 2]))
    assert "must be an integer from -2147483648" in nnhal("run", model, "-i", str(tmp_path / "far.npy"), code=3)


def test_show_gives_the_types_and_shapes_that_an_application_has(tmp_path):
    lines = [line.split() for line in nnhal("show", saved(tmp_path, looked_up())).splitlines()]
    assert [line[1:] for line in lines if line[1:2] in (["int64"], ["float32"])] == [
        ["int64", "[3]"],
        ["float32", "[]"],
        ["int64", "[3]"],
    ]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("verb", [["run"], ["show"], ["diff", "-d", "litert"], ["bench", "--duration", "0.1"]])
def test_every_verb_takes_a_member_of_a_bundle(tmp_path, verb):
    with zipfile.ZipFile(tmp_path / "x.task", "w") as archive:
        archive.writestr("tiny.tflite", maker.path("tiny_conv").read_bytes())
    nnhal(verb[0], f"{tmp_path}/x.task:tiny.tflite", *verb[1:])
    said = nnhal(verb[0], f"{tmp_path}/x.task", *verb[1:], code=3)
    assert "is a bundle of tiny.tflite; name one of its models" in said


def test_bench_compares_a_member_of_a_bundle_with_a_peer(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.task", "w") as archive:
        archive.writestr("add.tflite", maker.path("add4").read_bytes())
    assert "litert" in nnhal("bench", f"{tmp_path}/x.task:add.tflite", "--vs", "litert", "--iterations", "10")


def test_open_dimensions_are_said_and_asked_for(tmp_path):
    assert "--shape t0=1,1,3" in nnhal("run", saved(tmp_path, opened([1, 5, 3])), code=3)
    nnhal("run", saved(tmp_path, opened([1, 5, 3])), "--shape", "t0=1,5,3")


def test_a_model_of_which_shapes_must_be_given_is_shown_as_its_file_has_it(tmp_path):
    path = saved(tmp_path, opened([1, 5, 3]))
    shown = nnhal("show", path)
    assert "  not supported: a shape that the file leaves open must be given (--shape)" in shown
    assert "float32 [1,?,3]" in shown and "RESHAPE" in shown
    assert json.loads(nnhal("show", path, "--json"))["level"] is None


def test_what_has_to_be_given_is_noted_in_one_line(tmp_path, capsys):
    line = called(capsys, "show", saved(tmp_path, opened([1, 5, 3])))[1].splitlines()[0]
    assert line.startswith("note: ") and line.endswith(
        "; --shape t0=1,1,3, or shapes={'t0': (1, 1, 3)}, with your sizes sets it"
    )

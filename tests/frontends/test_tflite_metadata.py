"""What a file says about itself: read as the published schema has it, and never a reason not to load the model."""

import io
import pickle  # noqa: TID251 (as applications do)
import zipfile

import flatbuffers
import numpy as np
import pytest

import nnhal
from nnhal import zoo
from nnhal.frontends.tflite import load
from tests.frontends.cases import refused
from tests.frontends.flat import Writer, one_operator, schema, tensor

VALUE, AXIS = 3, 2  # kinds of files with labels


class Said:
    """A metadata flatbuffer, written by the field numbers of metadata_schema.fbs."""

    def __init__(self) -> None:
        self.b = flatbuffers.Builder(256)

    def table(self, **fields) -> int:
        """f0=.. is field 0: text, list of tables, ("floats", [..]), ("byte", n), or another table."""
        made = {int(name[1:]): self.part(value) for name, value in fields.items()}
        self.b.StartObject(10)
        for place, value in made.items():
            if isinstance(value, tuple):
                self.b.PrependUint8Slot(place, value[1], 0)
            else:
                self.b.PrependUOffsetTRelativeSlot(place, value, 0)
        return self.b.EndObject()

    def part(self, value):
        """What is written before the table that has it."""
        if isinstance(value, str):
            return self.b.CreateString(value)
        if isinstance(value, list):
            self.b.StartVector(4, len(value), 4)
            for each in reversed(value):
                self.b.PrependUOffsetTRelative(each)
            return self.b.EndVector()
        if isinstance(value, tuple) and value[0] == "floats":
            self.b.StartVector(4, len(value[1]), 4)
            for each in reversed(value[1]):
                self.b.PrependFloat32(each)
            return self.b.EndVector()
        return value

    def bytes(self, root: int) -> bytes:
        self.b.Finish(root, b"M001")
        return bytes(self.b.Output())


def said(mean=(127.5,), std=(127.5,), kind=AXIS, files=("labels.txt",)) -> bytes:
    s = Said()
    unit = s.table(f0=("byte", 1), f1=s.table(f0=("floats", mean), f1=("floats", std)))
    content = s.table(f0=("byte", 2), f1=s.table(f0=("byte", 1)))
    stats = s.table(f0=("floats", [1.0]), f1=("floats", [-1.0]))
    given = s.table(f0="picture", f1="what to look at", f3=content, f4=[unit], f5=stats)
    labels = [s.table(f0=name, f1="names", f2=("byte", kind)) for name in files]
    made = s.table(f0="kind", f6=labels)
    graph = s.table(f2=[given], f3=[made])
    return s.bytes(s.table(f0="Pets", f1="finds pets", f2="v1", f3=[graph], f4="somebody", f5="Apache-2.0"))


def pictured(about: bytes, kind: str = "f4", members: dict[str, bytes] | None = None, **quant) -> bytes:
    """[1, 2, 2, 3] to its three means, with metadata, and a zip file behind it."""
    w = Writer()
    x, axes, y = w.tensor([1, 2, 2, 3], kind, **quant), w.tensor([2], "i4", [1, 2]), w.tensor([1, 3], kind, **quant)
    w.operator("MEAN", [x, axes], [y], "Reducer")
    w.ends([x], [y])
    w.model.buffers.append(schema.BufferT())
    w.model.buffers[-1].data = np.frombuffer(about, np.uint8)
    entry = schema.MetadataT()
    entry.name, entry.buffer = "TFLITE_METADATA", len(w.model.buffers) - 1
    w.model.metadata = [entry]
    target = io.BytesIO(w.bytes())
    if members:
        with zipfile.ZipFile(target, "a") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    return target.getvalue()


LABELS = {"labels.txt": b"cat\ndog\nb\x1b[31mird\n"}


def test_names_content_normalisation_and_labels_are_those_of_the_file():
    found = load(pictured(said(), members=LABELS)).metadata
    assert (found.name, found.description, found.version) == ("Pets", "finds pets", "v1")
    assert (found.author, found.licence, found.problem) == ("somebody", "Apache-2.0", "")
    (given,), (made,) = found.inputs, found.outputs
    assert (given.name, given.content, given.colour) == ("picture", "image", "RGB")
    assert (given.mean, given.std, given.least, given.greatest) == ((127.5,), (127.5,), (-1.0,), (1.0,))
    assert found.labels(made) == ("cat", "dog", "b[31mird") and found.labels(given) == ()
    assert dict(found.contents) == LABELS


def test_a_file_that_says_nothing_has_none():
    w = Writer()
    x = w.tensor([2], "b1")
    assert load(w.file([x], [x])).metadata is None


@pytest.mark.parametrize(("mean", "std"), [((0.0,), (0.0,)), ((float("nan"),), (1.0,)), ((1.0, 2.0), (1.0,)), ((), ())])
def test_a_normalisation_that_is_none_is_left_out(mean, std):
    assert load(pictured(said(mean, std))).metadata.inputs[0].mean == ()


def test_damaged_metadata_never_keeps_a_model_from_being_loaded():
    about, generator, problems = said(), np.random.default_rng(0), 0
    for turn in range(600):
        spoilt = bytearray(about)
        for place in generator.integers(0, len(spoilt), 3):
            spoilt[place] = generator.integers(0, 256)
        model = load(pictured(bytes(spoilt) if turn % 3 else about[: generator.integers(1, len(about))]))
        problems += bool(model.metadata.problem)
    assert problems > 100


def test_labels_that_would_fill_the_memory_are_refused():
    target = io.BytesIO(pictured(said()))
    with zipfile.ZipFile(target, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.txt", b"x\n" * (1 << 26))
    found = load(target.getvalue()).metadata
    with pytest.raises(nnhal.BadFile, match=r"labels\.txt has 134217728 bytes, must have"):
        found.labels(found.outputs[0])


def test_a_label_file_that_is_not_there_is_no_labels():
    found = load(pictured(said(files=("other.txt",)), members=LABELS)).metadata
    assert found.labels(found.outputs[0]) == ()


@pytest.mark.models
@pytest.mark.parametrize(
    "name",
    [
        "face_detection_short_range",
        "face_detection_full_range_sparse",
        "face_landmark",
        "hand_landmark_full",
        "hand_landmark_lite",
        "palm_detection_full",
        "pose_detection",
        "selfie_segmentation",
        "selfie_segmentation_landscape",
    ],
)
def test_real_models_say_the_range_that_their_makers_document(name):
    (given,) = load(zoo.path(name)).metadata.inputs
    low, high = ((n - given.mean[0]) / given.std[0] for n in (0, 255))
    assert given.content == "image" and (low, high) == zoo.entry(name).values


# --------------------------------------------------------------------------------------------------------- open shapes


def opened(shape: list[int], name: str = "RESHAPE") -> bytes:
    return one_operator(
        name,
        [tensor([1, 1, 3], shapeSignature=[1, -1, 3]), tensor([len(shape)], "i4", shape)],
        [tensor([abs(d) for d in shape])],
    )


def test_open_dimensions_are_noted():
    (note,) = load(opened([-1])).notes
    assert note == (
        "input 't0' [1, ?, 3] is open in the file and taken as [1, 1, 3]; "
        "--shape t0=1,1,3, or shapes={'t0': (1, 1, 3)}, with your sizes sets it"
    )
    assert load(opened([-1]), shapes=[(1, 2, 3)]).notes == ()


def test_an_error_that_the_open_dimensions_make_asks_for_them_and_for_nothing_else():
    with pytest.raises(nnhal.InvalidArgument) as caught:
        load(opened([1, 5, 3]))
    assert str(caught.value) == (
        "model: input 't0' [1, ?, 3] is open in the file, must be given; "
        "--shape t0=1,1,3, or shapes={'t0': (1, 1, 3)}, with your sizes sets it"
    )
    load(opened([1, 5, 3]), shapes={"t0": (1, 5, 3)})


def test_an_error_that_every_size_makes_is_that_error():
    refused(opened([1, 5, 3], "Mine"), r"cannot be expressed in NNAPI: custom operation Mine #0: is unknown")


def test_metadata_and_what_lies_behind_the_model_travel_to_other_processes():
    model = load(pictured(said(), members=LABELS))
    for _ in range(2):  # before and after it was looked into
        other = pickle.loads(pickle.dumps(model))
        assert other.metadata == model.metadata and other.notes == model.notes and other.edge == model.edge
        assert dict(other.metadata.contents) == LABELS

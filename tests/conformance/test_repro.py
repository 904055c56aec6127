"""One vector by itself in a folder, and which vectors of a folder are selected: a folder of two, written out."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.device_under_test import Bundle, Subject
from nnhal.conformance.parallel import _VectorWork, run_vectors
from nnhal.conformance.repro import write
from nnhal.conformance.selection import Item, Selection, planned
from nnhal.conformance.suite import Outcome
from nnhal.conformance.vectors import index, read
from nnhal.model.text import text
from tests.conformance.test_vector_by_hand import BLOB, operand, vector

ONE, TWO, BROKEN = (f"V1_3/by_hand/{name}" for name in ("one", "sub/two", "broken"))


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """Two vectors, and one whose model cannot be built, in two specifications."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    broken = vector(name="broken").test
    broken["main"]["operands"].append(operand("TENSOR_FLOAT32", "CONSTANT_COPY", 1, name="c"))
    other = {"name": "other", "main": broken["main"]}
    with zipfile.ZipFile(folder / "V1_3.zip", "w") as archive:
        for specification, tests in (
            ("another", [other]),
            ("by_hand", [vector(name="sub/two").test, vector().test, broken]),
        ):
            document = {"format": 1, "version": "V1_3", "spec": specification, "blob": f"{specification}.bin"}
            archive.writestr(f"{specification}.json", json.dumps(document | {"tests": tests}))
            archive.writestr(f"{specification}.bin", BLOB)
    entries: list[dict[str, Any]] = [
        {"id": ONE, "primary": "DEQUANTIZE", "flags": ["dynamicOutputShape", "quantCoupling"]},
        {"id": TWO, "primary": "DEQUANTIZE", "flags": ["relaxed"]},
        {"id": BROKEN, "flags": []},
        {"id": "V1_3/another/other", "primary": "ADD"},
    ]
    (folder / "index.json").write_text(json.dumps({"tests": entries}))
    return folder


# ------------------------------------------------------------------------------------------------------------- one alone


@pytest.mark.parametrize("id", [ONE, TWO])
@pytest.mark.parametrize("variant", ["", "signed", "dynamic"])
def test_a_vector_alone_is_the_vector_it_was(id: str, variant: str, corpus: Path, tmp_path: Path) -> None:
    outcome = Outcome(id, "failed", variant=variant, outputs=(np.float32([9, 8, 7]), None))
    name = id.removeprefix("V1_3/by_hand/") + (f"-{variant}" if variant else "")
    for _ in range(2):  # the second time in the place of the first
        folder = write(tmp_path / "new" / "repro", Selection(corpus), outcome)
        assert folder == tmp_path / "new" / "repro" / name
    signed = variant == "signed"
    (alone,) = read(folder)
    (was,) = [each for each in read(corpus) if each.id == id]
    assert alone.id == id and index(folder) == {id: index(corpus)[id]}
    for dynamic in (False, True):
        assert text(alone.model(dynamic=dynamic, signed=signed)) == text(was.model(dynamic=dynamic, signed=signed))
    assert (folder / "model.txt").read_text() == text(was.model(dynamic=variant == "dynamic", signed=signed))
    x = [-128, 0, 127] if signed else [0, 128, 255]
    assert [alone.inputs(signed=signed)[0].tolist(), alone.expected(signed=signed)[0].data.tolist()] == [
        x,
        [1.5, -2, 3],
    ]
    arrays = np.load(folder / "arrays.npz")
    assert {name: arrays[name].tolist() for name in arrays} == {
        "input_0": x, "expected_0": [1.5, -2, 3], "output_0": [9, 8, 7],
    }  # fmt: skip
    assert arrays["input_0"].dtype == (np.int8 if signed else np.uint8)


def test_only_the_bytes_that_a_vector_refers_to_go_with_it_each_at_a_multiple_of_8(
    corpus: Path, tmp_path: Path
) -> None:
    folder = write(tmp_path, Selection(corpus), Outcome(ONE, "failed"))
    with zipfile.ZipFile(folder / "V1_3.zip") as archive:
        assert archive.namelist() == ["by_hand.json", "by_hand.bin"]
        blob, document = archive.read("by_hand.bin"), json.loads(archive.read("by_hand.json"))
    assert document["format"] == 1 and (document["version"], document["spec"]) == ("V1_3", "by_hand")
    assert blob == bytes([0, 128, 255]) + bytes(5) + np.float32([1.5, -2, 3]).tobytes() + bytes(4)
    assert [each["data"] for each in document["tests"][0]["main"]["operands"]] == [[0, 3], [8, 12]]


def test_a_model_that_cannot_be_built_is_shown_as_what_is_wrong_with_it(corpus: Path, tmp_path: Path) -> None:
    folder = write(tmp_path, Selection(corpus), Outcome(BROKEN, "failed"))
    assert (folder / "model.txt").read_text() == f"{BROKEN}: constant 'c' has no data\n"


def test_a_vector_that_is_gone_and_a_folder_that_cannot_be_written_are_said_to_be(corpus: Path, tmp_path: Path) -> None:
    for gone in ("V1_2/by_hand/one", "V1_3/by_foot/one", "V1_3/by_hand/three"):
        with pytest.raises(InvalidArgument, match=f"vectors: {gone} is no longer in .*corpus"):
            write(tmp_path, Selection(corpus), Outcome(gone, "failed"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgument, match=r"repro .*/file/one: Not a directory, must be a writable folder"):
        write(tmp_path / "file", Selection(corpus), Outcome(ONE, "failed"))


# ---------------------------------------------------------------------------------------------------------- what is selected


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ({}, [(ONE, ""), (ONE, "dynamic"), (ONE, "signed"), (TWO, ""), (BROKEN, ""), ("V1_3/another/other", "")]),
        ({"rerun": False}, [(ONE, ""), (TWO, ""), (BROKEN, ""), ("V1_3/another/other", "")]),
        ({"rerun": False, "pattern": "two|other"}, [(TWO, ""), ("V1_3/another/other", "")]),
        ({"rerun": False, "operations": frozenset({"DEQUANTIZE"})}, [(ONE, ""), (TWO, "")]),
        ({"rerun": False, "operations": frozenset({"several"})}, [(BROKEN, "")]),
        ({"operations": frozenset({"DEQUANTIZE"}), "pattern": "other"}, []),
        ({"flag": "relaxed"}, [(TWO, "")]),
        ({"flag": "float16"}, []),
        ({"share": 1e-9}, []),
        ({"share": 1e-9, "flag": "relaxed"}, []),
    ],
)
def test_a_plan_has_what_is_selected_by_name_operation_flag_and_share(named: Any, wanted: Any, corpus: Path) -> None:
    plan = planned(Selection(corpus, **named))
    assert [(item.id, item.variant) for bundle in plan for item in bundle.items] == wanted
    assert all(bundle.items for bundle in plan)
    for (archive, member), items in plan:
        assert {(archive.stem, member)} == {(i.id.split("/")[0], i.id.split("/")[1] + ".json") for i in items}


def test_an_item_has_its_operation_and_what_is_of_several_says_so(corpus: Path) -> None:
    found = {item.id: item.primary for bundle in planned(Selection(corpus)) for item in bundle.items}
    assert found == {ONE: "DEQUANTIZE", TWO: "DEQUANTIZE", BROKEN: "several", "V1_3/another/other": "ADD"}


def test_an_index_and_zips_that_differ_are_refused(corpus: Path) -> None:
    for entries in ([{"id": ONE}], [{"id": ONE}, {"id": "V1_3/another/x"}, {"id": "V1_2/none/x"}]):
        (corpus / "index.json").write_text(json.dumps({"tests": entries}))
        with pytest.raises(
            InvalidArgument, match=r"V1_[23]/(another|none) must be both in index\.json and in V1_[23]\.zip"
        ):
            planned(Selection(corpus))


def test_nothing_is_left_out_and_nothing_kept_where_nothing_else_is_said() -> None:
    default = Selection(Path("any"))
    assert (default.rerun, default.share, default.outputs, default.way, default.isolate) == (
        True,
        1,
        False,
        "plain",
        False,
    )
    assert Subject(timeout=0.5).timeout == 0.5


def test_vectors_are_the_work_of_a_pool_and_one_that_is_lost_says_which(corpus: Path, monkeypatch: Any) -> None:
    from nnhal.conformance import parallel

    selection = Selection(corpus, rerun=False)
    work = _VectorWork(selection)
    assert list(work.bundles) == planned(selection) and work.subject is selection
    assert work.module == "nnhal.conformance.worker" and isinstance(work.bundles[0], Bundle)
    lost = work.lost(Item(ONE, "signed", "DEQUANTIZE"), "hung", "why", 7, "a stack", "")
    assert lost == Outcome(ONE, "hung", "why", "signed", "DEQUANTIZE", 7)
    monkeypatch.setattr(parallel, "run_all", lambda work, jobs: (type(work), jobs))
    found: Any = run_vectors(selection, 3)
    assert found == (_VectorWork, 3)

"""The runtime's own entries: an imported model, and what devices say of it, are known the next time, or made anew."""

import gc
import os
import sys
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.private import private_file
from nnhal.drivers.litert.device import Litert
from nnhal.drivers.reference import Reference
from nnhal.drivers.samples.full import FullV1_3
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.wrappers import Limited, Recorded
from nnhal.model.builder import ModelBuilder
from nnhal.model.graph import Model
from nnhal.model.stored import pack_model, unpack_model
from nnhal.model.validate import level_needed, optional_inputs, stored_validation, validate
from nnhal.runtime.cache import runtime_entries
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.cache.making import NewEntry
from nnhal.runtime.cache.runtime_entries import RuntimeEntries
from nnhal.zoo.by_name import path
from tests.execution import run_python
from tests.runtime.devices import failing
from tests.waiting import Opened

MISS = "miss: there is no entry"
MADE = "add4", "tiny_conv", "tiny_conv_int8", "tiny_dynamic", "tiny_lstm"  # by nnhal, so that no package is needed


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(runtime_entries, "CUSTOM_OPERATORS", {})  # whatever other tests registered


def file_of(name: str) -> Path:
    return path(name, lambda _: None)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of one's own to change."""
    mine = tmp_path / "mine.tflite"
    mine.write_bytes(file_of("tiny_conv").read_bytes())
    return mine


def inputs(model: Any) -> list[Any]:
    rng = np.random.default_rng(1)
    return [np.asarray(rng.integers(0, 9, [d or 1 for d in spec.shape]), spec.dtype) for spec in model.inputs]


def run(file: Path, folder: Path, devices: Any = None, **settings: Any) -> list[str]:
    """What became of each entry, of a compilation whose results are those of one without a cache."""
    with nnhal.compile(nnhal.load(file), devices=["reference"]) as plain:
        given = inputs(plain)
        right = plain(*given)
    with nnhal.compile(file, devices=devices or [FullV1_3()], cache_dir=folder, **settings) as compiled:
        np.testing.assert_allclose(compiled(*given), right, rtol=1e-5, atol=1e-5)
        return [str(outcome) for outcome in compiled.cache]


# --------------------------------------------------------------------------------------------------------- the entries


def test_a_file_is_imported_once(file: Path, folder: Path) -> None:
    assert [run(file, folder) for _ in range(3)] == [[MISS, MISS], ["hit", "hit"], ["hit", "hit"]]


def test_a_model_that_does_not_fit_into_memory_twice_is_imported_and_not_kept(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_entries, "store_content", failing(MemoryError))
    assert run(file, folder)[0] == f"{MISS}; it cannot be kept: it does not fit into memory"


def test_what_others_empty_before_it_is_published_is_imported_and_not_kept(
    file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish = NewEntry.publish

    def emptied(new: NewEntry, *given: Any, **more: Any) -> None:
        for fd in new.files.cache(bytes(32)).files:
            os.ftruncate(fd, 0)
        publish(new, *given, **more)

    monkeypatch.setattr(NewEntry, "publish", emptied)
    assert nnhal.load(file, cache_dir=folder).main == nnhal.load(file, cache_dir=False).main
    monkeypatch.undo()
    assert not CacheFolder(folder, 1 << 30).entries()


def test_a_hit_loads_neither_importer_nor_records_of_operations(folder: Path) -> None:
    program = (
        "import sys, nnhal, numpy as np\n"
        f"c = nnhal.compile({str(file_of('tiny_conv'))!r}, devices='litert', cache_dir={str(folder)!r})\n"
        "c.run(*(np.zeros(s.shape, s.dtype) for s in c.inputs))\n"
        "loaded = [m for m in sys.modules if m.startswith(('nnhal.frontends.tflite', 'nnhal.ops.conv', 'nnhal.ipc'))]\n"
        "print([str(o) for o in c.cache], loaded)"
    )
    first, second = (run_python(program).stdout for _ in range(2))
    assert first.startswith(f"['{MISS}', '{MISS}'] ['nnhal.")
    assert second == "['hit', 'hit'] []\n"


def test_a_hit_loads_the_engine_that_runs_it_and_no_other_that_was_asked(folder: Path) -> None:
    program = (
        "import sys, nnhal\n"
        f"devices, folder = ['onnxruntime', 'openvino', 'litert'], {str(folder)!r}\n"
        f"c = nnhal.compile({str(file_of('tiny_conv'))!r}, devices=devices, cache_dir=folder)\n"
        "engines = ['onnxruntime', 'openvino', 'ai_edge_litert.interpreter']\n"
        "print({s.device for s in c.placement.steps}, [m for m in engines if m in sys.modules])"
    )
    first, second = (run_python(program).stdout for _ in range(2))
    assert first == "{'litert'} ['openvino', 'ai_edge_litert.interpreter']\n"  # OpenVINO says what it takes by trying
    assert second == "{'litert'} ['ai_edge_litert.interpreter']\n"


def test_a_device_is_asked_about_a_files_model_once(file: Path, folder: Path) -> None:
    calls: list[str] = []
    run(file, folder, [Recorded(FullV1_3(), calls)])
    asked = [call for call in calls if call in ("consider", "supports")]
    assert len(asked) == 1
    assert run(file, folder, [Recorded(FullV1_3(), calls)]) == ["hit", "hit"]
    assert [call for call in calls if call in ("consider", "supports")] == asked


def test_an_entry_says_how_many_operations_of_how_many_it_is_about(file: Path, folder: Path) -> None:
    run(file, folder)
    facts = [entry.manifest.facts for entry in CacheFolder(folder, 1 << 20).entries() if entry.manifest]
    assert [(each["operations"], each["of"]) for each in facts] == [(3, 3)] * 3


def test_a_device_of_another_version_is_asked_again(file: Path, folder: Path) -> None:
    class Next(FullV1_3):
        version = "next"

    run(file, folder)
    calls: list[str] = []
    assert run(file, folder, [Recorded(Next(), calls)]) == ["hit", MISS]
    assert "consider" in calls or "supports" in calls


@pytest.mark.parametrize("limited_first", [False, True])
def test_what_a_wrapped_device_says_is_not_taken_for_what_the_device_says(
    file: Path, folder: Path, limited_first: bool
) -> None:
    plain = FullV1_3()
    limited = [Recorded(Limited(plain, lambda _, place, own=n: place != own, f"not {n}"), []) for n in (0, 1)]  # type: ignore[misc]
    for device in [*limited, plain] if limited_first else [plain, *limited]:
        try:
            nnhal.compile(file, devices=[device], cache_dir=folder).close()
            said = ""
        except nnhal.UnsupportedModel as error:
            said = str(error)
        assert [n for n in (0, 1) if f"not {n}" in said] == [n for n in (0, 1) if device is limited[n]]


def test_a_device_whose_code_is_in_no_file_is_asked_each_time(file: Path, folder: Path) -> None:
    program = (
        "import sys, nnhal\nfrom nnhal.drivers.samples.full import FullV1_3\n"
        "class Mine(FullV1_3):\n"
        "    def supports(self, model): return [{answer}] * len(model.main.operations)\n"
        "try:\n"
        f"    nnhal.compile({str(file)!r}, devices=[Mine()], cache_dir={str(folder)!r})\n"
        "    print('taken')\n"
        "except nnhal.UnsupportedModel:\n"
        "    print('refused')\n"
    )
    first, second = (run_python(program.format(answer=answer)).stdout for answer in (True, False))
    assert (first, second) == ("taken\n", "refused\n")


def test_a_device_that_keeps_nothing_is_asked_each_time(file: Path, folder: Path) -> None:
    calls: list[str] = []
    for _ in range(2):
        run(file, folder, [Recorded(Reference(), calls)])
    assert len([call for call in calls if call in ("consider", "supports")]) == 2


def test_a_model_object_has_no_entry_of_its_own(file: Path, folder: Path) -> None:
    model = nnhal.load(file)
    for wanted in (MISS, "hit"):
        with nnhal.compile(model, devices=[FullV1_3()], cache_dir=folder) as compiled:
            assert [str(outcome) for outcome in compiled.cache] == [wanted]
    assert len(CacheFolder(folder, 1 << 20).entries()) == 1


def test_changed_contents_are_another_model(file: Path, folder: Path) -> None:
    run(file, folder)
    file.write_bytes(file_of("tiny_conv_int8").read_bytes())
    assert run(file, folder) == [MISS, MISS]
    file.write_bytes(file_of("tiny_conv").read_bytes())
    assert run(file, folder) == ["hit", "hit"]


def test_another_name_is_another_model(file: Path, folder: Path) -> None:
    run(file, folder)
    other = file.rename(file.with_name("other.tflite"))
    with nnhal.compile(other, devices=[FullV1_3()], cache_dir=folder) as compiled:
        assert str(compiled.cache[0]) == MISS


def test_a_file_whose_name_is_no_text_is_kept_like_any_other(file: Path, folder: Path) -> None:
    file = file.rename(file.with_name(os.fsdecode(b"\xff.tflite")))
    assert [run(file, folder) for _ in range(2)] == [[MISS, MISS], ["hit", "hit"]]
    assert run(file, folder, "litert", isolation="process")[0] == "hit"


def test_what_others_registered_is_not_kept(file: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_entries, "CUSTOM_OPERATORS", {"of.mine": None})
    for _ in range(2):
        with nnhal.compile(file, devices=["reference"], cache_dir=folder) as compiled:
            assert str(compiled.cache[0]) == "off: custom operators are registered"


def test_a_folder_that_cannot_be_is_no_failure(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    first, second = run(file, tmp_path / "cache")
    assert first.startswith("off: the folder ") and second.startswith("off: the folder ")


def test_a_kept_model_falls_back(file: Path, folder: Path) -> None:
    class Fails(Litert):
        def __init__(self) -> None:
            super().__init__()
            self.version = "fails"

        def prepare(self, model: Model, hints: Hints) -> Prepared:
            raise RuntimeError("not today")

    run(file, folder)
    with pytest.warns(nnhal.FallbackWarning):
        assert run(file, folder, [Fails()], fallback="warn")[0] == "hit"


def test_a_kept_model_runs_in_a_process_of_its_own(file: Path, folder: Path) -> None:
    settings: dict[str, Any] = {"devices": ["litert"], "isolation": "process"}
    assert [run(file, folder, **settings) for _ in range(2)] == [[MISS, MISS], ["hit", "hit"]]


def test_relaxed_is_another_compilation_of_the_same_file(file: Path, folder: Path) -> None:
    run(file, folder, [Litert()])
    assert run(file, folder, [Litert()], relaxed=True) == ["hit", MISS]


# ------------------------------------------------------------------------------------------------------------- damage


def own_files(folder: Path) -> list[Path]:
    """The files of the runtime's own entries."""
    keys = [e.key for e in CacheFolder(folder, 1 << 20).entries() if e.manifest and e.manifest.facts["place"] == "own"]
    return sorted(f for key in keys for f in folder.glob(f"{key}.*.m0"))


def test_a_bit_flipped_in_any_byte_is_a_miss_and_made_anew(file: Path, folder: Path) -> None:
    run(file, folder)
    with nnhal.compile(nnhal.load(file), devices=["reference"]) as plain:
        given = inputs(plain)
        right = plain(*given)
    sizes = [f.stat().st_size for f in own_files(folder)]
    assert len(sizes) == 2
    for number, size in enumerate(sizes):
        for at in range(0, size, 7):
            target = own_files(folder)[number]
            data = bytearray(target.read_bytes())
            data[at] ^= 1 << at % 8
            target.write_bytes(data)
            with nnhal.compile(file, devices=[FullV1_3()], cache_dir=folder) as compiled:
                np.testing.assert_array_equal(compiled(*given), right)
    assert run(file, folder) == ["hit", "hit"]


def test_entries_that_changed_places_are_misses(tmp_path: Path, folder: Path) -> None:
    for name in ("tiny_conv", "tiny_conv_int8"):
        run(file_of(name), folder)
    files = own_files(folder)
    contents = [f.read_bytes() for f in files]
    for target, content in zip(files, contents[1:] + contents[:1], strict=True):
        target.write_bytes(content)
    for name in ("tiny_conv", "tiny_conv_int8"):
        assert run(file_of(name), folder)[0].startswith("miss: ")


# ------------------------------------------------------------------------------------------------- a model, kept as bytes


@pytest.mark.parametrize("name", MADE)
def test_a_model_that_was_kept_is_the_same_and_known_as_well(name: str) -> None:
    model = nnhal.load(file_of(name))
    same = unpack_model(pack_model(model), model.pools, {})
    assert same == model and same.name == model.name and same.notes == model.notes and same.edge == model.edge
    assert [(s.input, s.output, s.initial.tolist()) for s in same.states] == [
        (s.input, s.output, s.initial.tolist()) for s in model.states
    ]
    assert stored_validation(same) == stored_validation(model)
    assert optional_inputs(same) == optional_inputs(model)
    operations = range(len(model.main.operations))
    assert [level_needed(same, n) for n in operations] == [level_needed(model, n) for n in operations]
    for one, other in zip(validate(same).subgraphs, validate(model).subgraphs, strict=True):
        assert [v and (v.type, v.shape, v.scale, v.name) for v in one.values] == [
            v and (v.type, v.shape, v.scale, v.name) for v in other.values
        ]
        assert len(one.operations) == len(other.operations)
        assert [a and a.name for a in one.operations] == [a and a.name for a in other.operations]


def test_a_model_with_branches_is_known_again() -> None:
    b = ModelBuilder()
    for name in ("FLOOR", "ABS"):
        branch = b.subgraph()
        x, y = (branch.operand(OperandType.TENSOR_FLOAT32, (2,)) for _ in range(2))
        branch.operation(name, [x], [y])
        branch.finish_subgraph([x], [y])
    condition, given = b.operand(OperandType.TENSOR_BOOL8, (1,)), b.operand(OperandType.TENSOR_FLOAT32, (2,))
    branches = [b.subgraph_operand(OperandType.SUBGRAPH, n) for n in range(2)]
    gives = b.operand(OperandType.TENSOR_FLOAT32, (2,))
    b.operation("IF", [condition, *branches, given], [gives])
    model = b.finish([condition, given], [gives])
    same = unpack_model(pack_model(model), model.pools, {})
    assert same == model and stored_validation(same) == stored_validation(model)


def test_what_was_never_a_model_is_refused_by_name() -> None:
    with pytest.raises(nnhal.InvalidModel, match="kept model: cannot be read"):
        unpack_model(b"\x93", (), {})


def test_an_interrupt_as_a_file_of_the_folder_was_opened_leaves_no_descriptor(folder: Path) -> None:
    key, entries = bytes(32), RuntimeEntries(CacheFolder(folder, 1 << 20))

    def work() -> None:
        entries.keep(key, {"a": b"b"}, {})
        entries.found(key)

    def struck(after: int) -> bool:
        """Whether an interrupt came, as so many files had been opened."""
        opened = count()

        def trace(frame: Any, event: str, _: Any) -> Any:
            if frame.f_code is private_file.__code__ and event == "return" and next(opened) == after:
                raise KeyboardInterrupt
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            work()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    work()
    gc.collect()
    opened = Opened()
    strikes = len(list(takewhile(struck, count())))
    gc.collect()
    assert strikes > 10
    opened.closed()
    work()

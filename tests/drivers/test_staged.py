"""The sample that compiles in two stages: right in both, and the second is what the next start begins with."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.drivers.reference import Reference
from nnhal.drivers.samples.staged import Staged, StagedPrepared, folded
from nnhal.hal import late_cache
from nnhal.hal.cache.locks import exclusive_files
from nnhal.hal.device import Hints
from nnhal.model.graph import Model
from tests.models import make_model
from tests.waiting import Opened, Started

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]
X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8)


def halves() -> Model:
    """A layer whose weights have 8 bits and are widened, and then scaled, in the model."""
    b = nnhal.Builder("halves")
    x = b.input((1, 8))
    weights = np.arange(32, dtype=np.uint8).reshape(4, 8)
    narrow = b.constant(weights, type="TENSOR_QUANT8_ASYMM", scale=0.25, zero_point=8)
    wide = b.mul(b.dequantize(narrow), b.constant(np.full(1, 2, np.float32)))
    return b.finish([x], [b.fully_connected(x, wide, np.ones(4, np.float32))])


def plain() -> Model:
    return make_model(lambda b, x: b.relu(x), (1, 8), name="plain")


def right(model: Model) -> Any:
    return nnhal.compile(model, devices="reference")(X)


def settled(compiled: Any) -> None:
    (step,) = compiled._caller.plan.steps
    step.prepared.inner._thread.join()


def test_what_only_constants_are_needed_for_is_folded() -> None:
    model = halves()
    better = folded(model)
    assert better is not None and len(better.main.operations) == 1
    np.testing.assert_array_equal(nnhal.compile(better, devices="reference")(X), right(model))


def test_where_nothing_is_to_be_folded_there_is_no_second_stage() -> None:
    assert folded(plain()) is None


def test_both_stages_compute_the_same(tmp_path: Path) -> None:
    with nnhal.compile(halves(), devices=[Staged()], cache_dir=tmp_path / "cache") as compiled:
        for _ in range(3):
            np.testing.assert_array_equal(compiled(X), right(halves()))
            settled(compiled)


def test_the_second_start_begins_with_the_second_stage(tmp_path: Path) -> None:
    outcomes, operations = [], []
    for _ in range(3):
        with nnhal.compile(halves(), devices=[Staged()], cache_dir=tmp_path / "cache") as compiled:
            (step,) = compiled._caller.plan.steps
            outcomes.append(str(compiled.cache[0]))
            operations.append(len(step.prepared.inner._stage.model.main.operations) if outcomes[-1] == "hit" else 0)
            settled_if_any(compiled)
            np.testing.assert_array_equal(compiled(X), right(halves()))
    assert outcomes == ["miss: there is no entry", "hit", "hit"] and operations == [0, 1, 1]


def settled_if_any(compiled: Any) -> None:
    (step,) = compiled._caller.plan.steps
    if step.prepared.inner._thread.ident is not None:
        step.prepared.inner._thread.join()


def test_whoever_ends_in_the_first_stage_leaves_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StagedPrepared, "_fold", lambda *_: None)
    with nnhal.compile(halves(), devices=[Staged()], cache_dir=tmp_path / "cache"):
        pass
    monkeypatch.undo()
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    with nnhal.compile(halves(), devices=[Staged()], cache_dir=tmp_path / "cache") as compiled:
        assert str(compiled.cache[0]) == "hit"
        np.testing.assert_array_equal(compiled(X), right(halves()))


def test_a_file_that_is_being_written_is_a_miss_and_nobody_waits(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with nnhal.compile(halves(), devices=[Staged()], cache_dir=folder) as compiled:
        settled(compiled)
    (file,) = folder.glob("*.m0")
    with (
        file.open("r+b") as held,
        exclusive_files([held.fileno()]),
        nnhal.compile(halves(), devices=[Staged()], cache_dir=folder) as compiled,
    ):
        assert str(compiled.cache[0]) == "miss: model file 0 is being written by its driver"
        np.testing.assert_array_equal(compiled(X), right(halves()))


def test_no_descriptor_and_no_thread_stays(tmp_path: Path) -> None:
    def once(number: int) -> None:
        with nnhal.compile(halves(), devices=[Staged()], cache_dir=tmp_path / f"cache{number}") as compiled:
            compiled(X)

    once(0)
    opened, started = Opened(), Started()
    for n in range(1, 5):
        once(n)
    opened.closed()
    started.ended()


def test_an_interrupted_saving_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(late_cache, "PATIENCE", 3600)
    monkeypatch.setattr(StagedPrepared, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        nnhal.compile(halves(), devices=[Staged()], cache_dir=tmp_path / "cache")


def test_it_prepares_without_a_cache_and_takes_what_the_reference_takes() -> None:
    model = plain()
    assert Staged().supports(model) == Reference().supports(model)
    prepared = Staged().prepare(model, Hints())
    prepared.close()


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_in_fresh_processes_the_second_is_a_hit_of_the_second_stage(isolation: str, tmp_path: Path) -> None:
    program = (
        "import glob, os, nnhal\nfrom tests.drivers.test_staged import X, halves, right\n"
        "from tests.waiting import until\n"
        f"folder = {str(tmp_path / 'c')!r}\n"
        f"c = nnhal.compile(halves(), devices='sample-staged', isolation={isolation!r}, cache_dir=folder)\n"
        "assert (c(X) == right(halves())).all()\n"
        "until(lambda: any(os.path.getsize(f) > 300 for f in glob.glob(folder + '/*.d0')))\n"
        "assert (c(X) == right(halves())).all(); print(*c.cache); c.close()"
    )
    environment = {**os.environ, "NNHAL_STATE_DIR": str(tmp_path / "state")}
    told = [
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment
        ).stdout
        for _ in range(2)
    ]
    assert told == ["miss: there is no entry\n", "hit\n"]
    (data,) = (tmp_path / "c").glob("*.d0")
    assert data.stat().st_size > 300  # header, name and hash are 224 bytes, the folded weights 128

"""Cache files that a driver writes when `prepare` has returned: at the first execution, in stages, under locks."""

import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.hal.cache.locks import exclusive_files
from nnhal.runtime import isolation
from nnhal.runtime.cache.folder import CacheFolder
from tests.models import make_model

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("new_start")]
ISOLATIONS = pytest.mark.parametrize("place", ["none", "process"])
X = np.float32([1, -2])

DEVICE = """
import os
import numpy as np
from nnhal.base.codes import ErrorStatus
from nnhal.drivers.samples.full import FullV1_2, PreparedV1_2
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.cache.locks import try_shared_lock, exclusive_files
from nnhal.hal.device import Capabilities, Device, Prepared, each_operation
from nnhal.hal.late_cache import Later
from nnhal.model.stored import pack_device_view, unpack_device_view

class P(Prepared):
    def __init__(self, factor=None, later=None):
        self.factor, self.later = factor, later
    def run(self, request, control):
        self.factor = self.factor or b"2"
        if self.later is not None:
            content = self.later.empty()
            content.model[0]["factor"] = self.better()
            assert self.later.save(content)
            self.later.close()
            self.later = None
        request.write(0, request.inputs[0] * np.float32(int(self.factor)))
    def better(self):
        return self.factor

class D(Device):
    name, version = "later", "1"
    def supports(self, model): return each_operation(model, lambda m, o: "")
    def number_of_cache_files(self): return CacheFiles(model=1)
    def prepare(self, model, hints): return P(later=Later(self, hints.cache) if hints.cache else None)
    def restore(self, files, token, hints): return P(bytes(files.model[0]["factor"]))

class Kept(PreparedV1_2):
    files = ()
    def executeSynchronously(self, request, measure):
        with exclusive_files(self.files):
            for fd in self.files:
                os.pwrite(fd, pack_device_view(self.model), 0)
        for fd in self.files:  # a lock of a closed descriptor would last as long as its duplicates
            os.close(fd)
        self.files = ()
        return super().executeSynchronously(request, measure)

class Hal(FullV1_2):
    name = "later"
    def getNumberOfCacheFilesNeeded(self): return ErrorStatus.NONE, 1, 0
    def prepareModel_1_2(self, model, preference, model_cache, data_cache, token, callback):
        prepared = Kept(model)
        prepared.files = [os.dup(fd) for fd in model_cache]
        callback.notify_1_2(ErrorStatus.NONE, prepared)
        return ErrorStatus.NONE
    def prepareModelFromCache(self, model_cache, data_cache, token, callback):
        with try_shared_lock(model_cache[0]):
            data = os.pread(model_cache[0], 1 << 20, 0)
        callback.notify_1_2(ErrorStatus.NONE, Kept(unpack_device_view(data, ())))
        return ErrorStatus.NONE

class Hal13(Hal):
    def prepareModel_1_3(self, model, preference, priority, deadline, *kept):
        return self.prepareModel_1_2(model, preference, *kept)
    def prepareModelFromCache_1_3(self, deadline, *kept):
        return self.prepareModelFromCache(*kept)

class Staged(D):
    "Each start finds the next stage of what the one before has kept."
    def restore(self, files, token, hints):
        prepared = P(bytes(files.model[0]["factor"]), Later(self, hints.cache))
        prepared.better = lambda: b"0%s" % prepared.factor
        return prepared

class Nothing(D):
    def prepare(self, model, hints): return P()

def device(): return {kind}()
"""


def compiled_by(tmp_path: Path, kind: str, place: Any) -> nnhal.Compiled:
    """What an application compiles when it starts."""
    (tmp_path / "drv.py").write_text(textwrap.dedent(DEVICE).replace("{kind}", kind))
    nnhal.load_driver(tmp_path / "drv.py")
    model = make_model(lambda b, x: b.mul(x, np.float32([2, 2])), (2,), name="doubled")
    return nnhal.compile(model, devices=["later"], isolation=place, cache_dir=tmp_path / "c")


def start(tmp_path: Path, kind: str, place: Any, *, runs: bool = True) -> str:
    """What becomes of the entry when an application starts and executes once, whose result is right."""
    with compiled_by(tmp_path, kind, place) as compiled:
        if runs:
            np.testing.assert_array_equal(compiled(X), 2 * X)
        (outcome,) = compiled.cache
    isolation.close_all()
    return str(outcome)


UNWRITTEN = "miss: there is no entry; its driver may write the entry later"


@pytest.mark.sampled(3)
@ISOLATIONS
@pytest.mark.parametrize("kind", ["D", "Hal", "Hal13"])
def test_what_is_written_at_the_first_execution_is_there_at_the_next_start(
    tmp_path: Path, kind: str, place: str
) -> None:
    assert [start(tmp_path, kind, place) for _ in range(3)] == [UNWRITTEN, "hit", "hit"]


@ISOLATIONS
def test_an_entry_that_was_never_written_is_a_miss(tmp_path: Path, place: str) -> None:
    assert start(tmp_path, "D", place, runs=False) == UNWRITTEN
    again = "miss: its driver has not written the entry; its driver may write the entry later"
    assert start(tmp_path, "D", place, runs=False) == again


@ISOLATIONS
@pytest.mark.parametrize("kind", ["D", "Hal"])
def test_what_one_start_writes_is_kept_where_another_one_began_before_that(
    tmp_path: Path, kind: str, place: str
) -> None:
    with compiled_by(tmp_path, kind, place) as compiled:
        (entry,) = CacheFolder(tmp_path / "c", 1 << 20).entries()
        with compiled_by(tmp_path, kind, place) as second:
            assert second.cache[0].reason.startswith("its driver has not written the entry")
        (same,) = CacheFolder(tmp_path / "c", 1 << 20).entries()
        assert entry.manifest == same.manifest
        np.testing.assert_array_equal(compiled(X), 2 * X)
    assert start(tmp_path, kind, place) == "hit"


@ISOLATIONS
def test_a_driver_that_keeps_nothing_has_no_entry(tmp_path: Path, place: str) -> None:
    for _ in range(2):
        assert start(tmp_path, "Nothing", place) == "miss: there is no entry; the device kept nothing of it"
    assert CacheFolder(tmp_path / "c", 1 << 20).entries() == []


@ISOLATIONS
def test_what_a_restored_model_writes_is_there_at_the_next_start(tmp_path: Path, place: str) -> None:
    assert [start(tmp_path, "Staged", place) for _ in range(4)] == [UNWRITTEN, "hit", "hit", "hit"]
    (file,) = (tmp_path / "c").glob("*.m0")
    assert b"0002" in file.read_bytes()


@ISOLATIONS
def test_a_file_that_somebody_writes_is_a_miss_for_a_sandboxed_driver_too(tmp_path: Path, place: str) -> None:
    start(tmp_path, "D", place)
    (file,) = (tmp_path / "c").glob("*.m0")
    with file.open("r+b") as held, exclusive_files([held.fileno()]):
        assert start(tmp_path, "D", place).startswith("miss: model file 0 is being written by its driver")

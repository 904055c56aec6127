"""A driver whose code changed under the same name and version: the next start computes by the new code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.model.graph import Model
from nnhal.runtime import isolation
from tests.models import make_model

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("new_start")]
PLACES = pytest.mark.parametrize("place", ["none", "process"])
MISS, HIT = "miss: there is no entry", "hit"

DEVICE = """
import os
import numpy as np
from nnhal.base.codes import ErrorStatus
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.device import Device, Prepared, each_operation
from nnhal.drivers.samples.full import FullV1_2, PreparedV1_2
from nnhal.model.stored import pack_device_view, unpack_device_view

FACTOR = 2

class P(Prepared):
    def __init__(self, code): self.code = bytes(code)
    def run(self, request, control): request.write(0, request.inputs[0] * np.float32(int(self.code)))
    def save(self, files):
        files.model[0]["code"] = self.code
        return True

class D(Device):
    name, version = "changing", "1"
    def supports(self, model): return each_operation(model, lambda m, o: "")
    def number_of_cache_files(self): return CacheFiles(model=1)
    def prepare(self, model, hints): return P(str(FACTOR).encode())
    def restore(self, files, token, hints): return P(files.model[0]["code"])

class Multiplying(PreparedV1_2):
    def __init__(self, model, code):
        super().__init__(model)
        self.interpreter = P(code)

class Hal(FullV1_2):
    "Trusts what it wrote."
    name = "changing"
    def getNumberOfCacheFilesNeeded(self): return ErrorStatus.NONE, 1, 0
    def prepareModel_1_2(self, model, preference, model_cache, data_cache, token, callback):
        kept = b"%d" % FACTOR + pack_device_view(model)
        for fd in model_cache:
            os.write(fd, kept)
        callback.notify_1_2(ErrorStatus.NONE, Multiplying(model, b"%d" % FACTOR))
        return ErrorStatus.NONE
    def prepareModelFromCache(self, model_cache, data_cache, token, callback):
        kept = os.pread(model_cache[0], 1 << 20, 0)
        callback.notify_1_2(ErrorStatus.NONE, Multiplying(unpack_device_view(kept[1:], ()), kept[:1]))
        return ErrorStatus.NONE

def device(): return KIND()
"""


def driver(path: Path, factor: int, kind: str = "D") -> Path:
    path.parent.mkdir(exist_ok=True)
    text = DEVICE.replace("FACTOR = 2", f"FACTOR = {factor}").replace("KIND", kind)
    path.write_text(text)
    return path


def model() -> Model:
    return make_model(lambda b, x: b.mul(x, np.float32([2, 2])), (2,), name="m")


def used(tmp_path: Path, place: Any) -> tuple[float, str]:
    """What the device of that name multiplies by, and what becomes of the entry."""
    with nnhal.compile(model(), devices=["changing"], isolation=place, cache_dir=tmp_path / "c") as compiled:
        return float(compiled(np.ones(2, np.float32))[0]), str(compiled.cache[0])


def started(path: Path, tmp_path: Path, place: Any) -> tuple[float, str]:
    isolation.close_all()
    nnhal.load_driver(path)
    return used(tmp_path, place)


@pytest.mark.sampled(2)
@PLACES
@pytest.mark.parametrize("kind", ["D", "Hal"])
def test_a_driver_that_was_replaced_finds_nothing_and_its_old_self_its_own(
    tmp_path: Path, kind: str, place: str
) -> None:
    path = tmp_path / "drv" / "changing.py"
    starts = [started(driver(path, factor, kind), tmp_path, place) for factor in (2, 2, 3, 3, 2)]
    assert starts == [(2, MISS), (2, HIT), (3, MISS), (3, HIT), (2, HIT)]


@PLACES
def test_what_old_code_compiles_is_not_kept_under_the_name_of_the_new_file(tmp_path: Path, place: str) -> None:
    path = tmp_path / "drv" / "changing.py"
    nnhal.load_driver(driver(path, 2))
    with nnhal.compile(model(), devices=["changing"], isolation=place, cache_dir=False):
        driver(path, 3)  # somebody installs the new one while the old one is loaded
        assert used(tmp_path, place) == (2, MISS)
    assert started(path, tmp_path, place) == (3, MISS)


def test_two_drivers_of_one_name_in_turns_both_hit(tmp_path: Path) -> None:
    first, second = (driver(tmp_path / folder / "changing.py", n) for folder, n in (("a", 2), ("b", 3)))
    starts = [started(path, tmp_path, "none") for _ in range(2) for path in (first, second)]
    assert starts == [(2, MISS), (3, MISS), (2, HIT), (3, HIT)]


@PLACES
def test_code_that_is_not_known_any_more_keeps_nothing_and_says_so(tmp_path: Path, place: str) -> None:
    path = driver(tmp_path / "drv" / "changing.py", 2)
    path.write_text(path.read_text() + "\nTABLE = 'table.json'\n")
    (path.parent / "table.json").write_text("2")
    assert started(path, tmp_path, place) == (2, MISS)
    (path.parent / "table.json").write_text("33")
    why = "off: table.json changed after this process loaded the driver; start again to keep compilations"
    assert used(tmp_path, place) == (2, why)

"""Drivers of the HAL that keep compilations: by the methods of their level, with their own integrity."""
# ruff: noqa: N802 - names are the HAL's

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import ErrorStatus
from nnhal.drivers.samples.full import FullV1_1, FullV1_2, PreparedV1_2
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.hidl.adapters import adapt
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view, unpack_device_view
from tests.models import make_model

pytestmark = pytest.mark.cache

X = np.float32([1, -2])


def model() -> Model:
    return make_model(lambda b, x: b.add(x, np.float32([1, 1])), (2,))


class Keeping(FullV1_2):
    """A driver of 1.2 that writes what it prepared to a model file, and the token to a data file."""

    name = "keeping"
    count: Any = (1, 1)
    status, gives = ErrorStatus.NONE, True

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def getNumberOfCacheFilesNeeded(self) -> Any:
        return self.status, *self.count

    def prepareModel_1_2(
        self, model: Any, preference: Any, model_cache: Any, data_cache: Any, token: Any, callback: Any
    ) -> Any:
        self.calls.append(("prepareModel_1_2", len(model_cache), len(data_cache), token))
        for fd in model_cache:
            os.write(fd, pack_device_view(model))
        for fd in data_cache:
            os.write(fd, token)
        return self.notified(callback.notify_1_2, PreparedV1_2, model)

    def prepareModelFromCache(
        self, model_cache: Sequence[int], data_cache: Sequence[int], token: bytes, callback: Any
    ) -> ErrorStatus:
        self.calls.append(("prepareModelFromCache", len(model_cache), len(data_cache), token))
        if os.read(data_cache[0], 99) != token or not self.gives:
            callback.notify_1_2(ErrorStatus.GENERAL_FAILURE, None)
            return ErrorStatus.NONE
        return self.notified(
            callback.notify_1_2, PreparedV1_2, unpack_device_view(os.read(model_cache[0], 1 << 20), ())
        )


class KeepingSince13(Keeping):
    """The same at 1.3, where a deadline comes first."""

    def prepareModel_1_3(self, model: Any, preference: Any, priority: Any, deadline: Any, *kept: Any) -> Any:
        return self.prepareModel_1_2(model, preference, *kept)

    def prepareModelFromCache_1_3(self, deadline: Any, *kept: Any) -> Any:
        self.calls.append(("deadline", deadline))
        return self.prepareModelFromCache(*kept)


def run(driver: Any, folder: Path, **settings: Any) -> str:
    with nnhal.compile(model(), devices=[adapt(driver)], cache_dir=folder, **settings) as compiled:
        np.testing.assert_array_equal(compiled(X), X + 1)
        return str(compiled.cache[0])


@pytest.mark.parametrize("kind", [Keeping, KeepingSince13])
def test_a_driver_of_the_hal_saves_and_restores(folder, kind):
    assert run(kind(), folder) == "miss: there is no entry"
    driver = kind()
    assert run(driver, folder) == "hit"
    (_, models, datas, token) = driver.calls[-1]
    assert (models, datas, len(token)) == (1, 1, 32)
    assert "prepareModel_1_2" not in [call[0] for call in driver.calls]


def test_since_1_3_it_is_told_the_deadline(folder):
    run(KeepingSince13(), folder, deadline=60.0)
    driver = KeepingSince13()
    assert run(driver, folder, deadline=60.0) == "hit"
    assert next(call for call in driver.calls if call[0] == "deadline")[1] > 0


def test_where_nothing_is_kept_there_are_no_files_and_a_token_of_zeros():
    driver = Keeping()
    with nnhal.compile(model(), devices=[adapt(driver)]) as compiled:
        compiled(X)
    assert driver.calls == [("prepareModel_1_2", 0, 0, bytes(32))]


def test_below_1_2_no_method_of_caching_is_called(folder):
    class Old(FullV1_1):
        def getNumberOfCacheFilesNeeded(self) -> Any:
            raise AssertionError("it was asked")

    assert run(Old(), folder) == "off: the device keeps none"


def test_a_driver_that_cannot_prepare_from_files_is_given_none(folder):
    class Forgetful(FullV1_2):
        def getNumberOfCacheFilesNeeded(self) -> Any:
            return ErrorStatus.NONE, 1, 0

    assert cache_files_by(adapt(Forgetful())) == CacheFiles()
    assert run(Forgetful(), folder) == "off: the device keeps none"


@pytest.mark.parametrize(("status", "count"), [(ErrorStatus.GENERAL_FAILURE, (1, 1)), (ErrorStatus.NONE, (33, 0))])
def test_a_driver_that_does_not_say_how_many_files_it_keeps_keeps_none(folder, status, count):
    driver = Keeping()
    driver.status, driver.count = status, count
    assert run(driver, folder).startswith("off: the driver failed to report its number of cache files:")


def test_a_driver_that_refuses_its_files_prepares_anew(folder, monkeypatch):
    run(Keeping(), folder)
    monkeypatch.setattr(Keeping, "gives", False)
    driver = Keeping()
    assert run(driver, folder) == "miss: driver keeping: prepareModelFromCache ended with GENERAL_FAILURE"
    assert [call[0] for call in driver.calls] == ["prepareModelFromCache", "prepareModel_1_2"]

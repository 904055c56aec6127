"""Compilations that are kept by drivers in other processes, which are handed descriptors and nothing else."""

import contextlib
import errno
import os
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

import nnhal
from nnhal.base.descriptors import Owner
from nnhal.base.errors import InvalidArgument, InvalidModel, NnhalError, ResourceExhausted
from nnhal.drivers.samples.full import FullV1_3
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import Cache, CacheFiles, DamagedCacheFile
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Hints
from nnhal.hal.wrappers import WithHalLevel
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.process import ReconnectingDevice, start
from nnhal.ipc.protocol import wire
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from tests.ipc.support import a_table, made, numbers, run, served_here, shifting, wait_until

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]

TOKEN = bytes(range(32))
NAME = "sample-full-1.3"


@contextlib.contextmanager
def a_cache(models: int = 1, datas: int = 1) -> Iterator[Cache]:
    """Empty files."""
    with contextlib.ExitStack() as files:
        fds = [files.enter_context(tempfile.TemporaryFile(buffering=0)).fileno() for _ in range(models + datas)]
        yield Cache(TOKEN, tuple(fds[:models]), tuple(fds[models:]))


def large(by: float) -> Model:
    return shifting(50_000, by)


@pytest.fixture
def served() -> Iterator[RemoteDevice]:
    """The sample as a service in this process."""
    with served_here(FullV1_3(), a_table()) as device:
        yield device


def test_a_driver_elsewhere_saves_and_restores(served):
    assert cache_files_by(served) == CacheFiles(1, 1)
    model = large(3)
    with a_cache() as cache:
        first = checked_prepared(served, model, Hints(cache=cache))
        assert all(os.fstat(fd).st_size > 200 for fd in cache.files)
        second = checked_prepared(served, outline(model), Hints(cache=cache), restore=True)
        for prepared in (first, second):
            np.testing.assert_array_equal(run(prepared, numbers(50_000)), numbers(50_000) + 3)
            prepared.close()


def test_what_was_considered_is_saved_too(served, tmp_path):
    for wanted in ("miss: there is no entry", "hit"):
        with nnhal.compile(large(3), devices=[served], cache_dir=tmp_path / "cache") as compiled:
            assert [str(each) for each in compiled.cache] == [wanted]
            np.testing.assert_array_equal(compiled(numbers(50_000)), numbers(50_000) + 3)


def test_what_is_not_what_was_written_is_refused_elsewhere_too(served):
    with a_cache() as cache:
        checked_prepared(served, large(3), Hints(cache=cache)).close()
        os.pwrite(cache.files[1], b"\xff", 300)
        with pytest.raises(NnhalError, match="data file 0 is not what was written"):
            checked_prepared(served, outline(large(3)), Hints(cache=cache), restore=True)


def test_a_service_below_1_2_is_not_asked():
    with served_here(WithHalLevel(FullV1_3(), nnhal.Level.V1_1), a_table()) as device:
        assert cache_files_by(device) == CacheFiles()
        assert "getNumberOfCacheFilesNeeded" not in device.session.calls


@pytest.mark.parametrize("level", [nnhal.Level.V1_2, nnhal.Level.V1_3])
def test_a_service_is_asked_by_the_methods_of_its_level(level):
    with served_here(WithHalLevel(FullV1_3(), level), a_table()) as device, a_cache() as cache:
        checked_prepared(device, large(1), Hints(cache=cache)).close()
        checked_prepared(device, outline(large(1)), Hints(cache=cache), restore=True).close()
        form = {nnhal.Level.V1_2: "", nnhal.Level.V1_3: "_1_3"}[level]
        assert device.session.calls[f"prepareModelFromCache{form}"] == 1


# ------------------------------------------------------------------------------------------------------- own processes


def test_a_confined_process_saves_and_restores(tmp_path):
    device = ReconnectingDevice(NAME, lambda: start(NAME))
    try:
        told = []
        for _ in range(3):
            with nnhal.compile(large(3), devices=[device], cache_dir=tmp_path / "cache") as compiled:
                np.testing.assert_array_equal(compiled(numbers(50_000)), numbers(50_000) + 3)
                told.append(str(compiled.cache[0]))
        assert told == ["miss: there is no entry", "hit", "hit"]
        again = ReconnectingDevice(NAME, lambda: start(NAME))
        with nnhal.compile(large(3), devices=[again], cache_dir=tmp_path / "cache") as compiled:
            assert str(compiled.cache[0]) == "hit"  # in a process that did not write it
        again.close()
    finally:
        device.close()


def test_a_confined_process_restores_from_a_folder_for_reading_only(tmp_path, monkeypatch):
    device, open_ = ReconnectingDevice(NAME, lambda: start(NAME)), os.open

    def read_only(path, flags, *more, **by):
        if flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        return open_(path, flags, *more, **by)

    try:
        nnhal.compile(large(3), devices=[device], cache_dir=tmp_path / "cache").close()
        monkeypatch.setattr(os, "open", read_only)
        with nnhal.compile(large(3), devices=[device], cache_dir=tmp_path / "cache") as compiled:
            assert str(compiled.cache[0]) == "hit"
            np.testing.assert_array_equal(compiled(numbers(50_000)), numbers(50_000) + 3)
        with nnhal.compile(large(4), devices=[device], cache_dir=tmp_path / "cache") as compiled:
            assert str(compiled.cache[0]) == "miss: there is no entry; it cannot be kept: read-only file system"
            np.testing.assert_array_equal(compiled(numbers(50_000)), numbers(50_000) + 4)
    finally:
        device.close()


def test_a_driver_elsewhere_that_cannot_write_saves_nothing_and_prepares(served, tmp_path):
    """A client hands files for reading only to a driver that saves."""
    with a_cache() as cache:
        paths = [f"/proc/self/fd/{fd}" for fd in cache.files]
        kept = Owner()
        kept.fds.extend(os.open(path, os.O_RDONLY) for path in paths)
        to_read = Cache(TOKEN, tuple(kept.fds[:1]), tuple(kept.fds[1:]), kept)
        prepared = checked_prepared(served, large(3), Hints(cache=to_read))
        np.testing.assert_array_equal(run(prepared, numbers(50_000)), numbers(50_000) + 3)
        prepared.close()
        assert [os.fstat(fd).st_size for fd in cache.files] == [0, 0]
        kept.close()


def test_what_was_restored_is_prepared_again_after_its_process_died(tmp_path):
    device = ReconnectingDevice(NAME, lambda: start(NAME))
    try:
        for wanted in ("miss", "hit"):
            with nnhal.compile(large(3), devices=[device], cache_dir=tmp_path / "cache") as compiled:
                assert compiled.cache[0].state == wanted
                compiled(numbers(50_000))
                session = device.remote().session
                os.kill(device.pid, signal.SIGKILL)
                wait_until(lambda session=session: session.peer.dead is not None, "the death")
                for _ in range(3):
                    np.testing.assert_array_equal(compiled(numbers(50_000)), numbers(50_000) + 3)
                assert compiled._caller.plan.steps[0].prepared.inner.prepared_again == 1  # type: ignore[attr-defined]
    finally:
        device.close()


def test_a_process_without_a_record_of_its_own_keeps_nothing(tmp_path, state):
    state.touch()
    device = ReconnectingDevice(NAME, lambda: start(NAME))
    try:
        with nnhal.compile(large(3), devices=[device], cache_dir=tmp_path / "cache") as compiled:
            assert str(compiled.cache[0]) == (
                "miss: there is no entry; the device did not keep it: no private record of what was cached:"
                f" {state} is a link or no folder, must be a folder"
            )
    finally:
        device.close()


# ---------------------------------------------------------------------------------------------------- hostile clients


def hold(device: RemoteDevice, fds: list[int], models: int = 1, datas: int = 1) -> int:
    return made(device.session, wire.HoldFiles, TOKEN, models, datas, fds=fds)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_files_that_do_not_come_along_are_refused(served, count):
    with a_cache(3, 0) as cache, pytest.raises(InvalidArgument, match=f"{count} descriptors are attached, must be 2"):
        hold(served, list(cache.files[:count]))


def test_what_is_no_file_to_read_is_refused(served, tmp_path):
    kept = Owner()
    kept.fds.extend(os.pipe())
    (tmp_path / "file").write_bytes(b"x")
    kept.fds.append(os.open(tmp_path / "file", os.O_WRONLY))
    kept.fds.append(os.open("/dev/null", os.O_RDWR))
    kept.fds.append(os.open(tmp_path, os.O_RDONLY))
    for fd in kept.fds:
        with pytest.raises(InvalidArgument, match="is not a readable file"):
            hold(served, [fd], 1, 0)
    kept.close()


def test_files_that_are_not_held_are_none(served):
    model = wire.WireModel((wire.WireSubgraph((), (), (), ()),), b"", (), False, ())
    for cache, why in (
        (0, "cache is 0, must be the number of held files"),
        (99, "cache files 99 is not held"),
    ):
        with pytest.raises(InvalidArgument, match=why):
            made(served.session, wire.PrepareModelFromCache, 4, model, 0, int(nnhal.Priority.MEDIUM), 0, 0, b"", cache)


def test_an_outline_with_operations_is_none(served):
    with a_cache() as cache, pytest.raises(InvalidModel, match="outline: has operations, must have none"):
        served.prepare_from_cache(large(3), Hints(cache=cache))


def test_files_count_among_the_descriptors_until_nobody_uses_them():
    with served_here(FullV1_3(), a_table(descriptors=40)) as device, a_cache(32, 0) as cache:
        number = hold(device, list(cache.files), 32, 0)
        with pytest.raises(ResourceExhausted, match="descriptors"):
            hold(device, list(cache.files), 32, 0)
        device.session.endings.release(number)
        wait_until(lambda: holds(device, cache), "the descriptors back")


def holds(device: RemoteDevice, cache: Cache) -> bool:
    try:
        hold(device, list(cache.files), 32, 0)
    except ResourceExhausted:
        return False
    return True


def test_files_that_a_client_empties_meanwhile_are_a_miss(served):
    with a_cache() as cache:
        checked_prepared(served, large(3), Hints(cache=cache)).close()
        os.ftruncate(cache.files[0], 0)
        with pytest.raises(NnhalError, match="model file 0 has 0 bytes"):
            checked_prepared(served, outline(large(3)), Hints(cache=cache), restore=True)


def test_a_miss_elsewhere_says_no_more_than_one_here(served):
    with a_cache() as cache:
        with pytest.raises(NnhalError) as there:
            checked_prepared(served, outline(large(3)), Hints(cache=cache), restore=True)
        with pytest.raises(DamagedCacheFile) as here:
            checked_prepared(FullV1_3(), outline(large(3)), Hints(cache=cache), restore=True)
    assert str(there.value) == str(here.value)


def test_swapped_files_of_two_compilations_are_misses(served, tmp_path):
    with a_cache() as one, a_cache() as two:
        for cache, model in ((one, large(1)), (two, replace(large(2), relaxed=True))):
            checked_prepared(served, model, Hints(cache=cache)).close()
        mixed = Cache(TOKEN, one.model_files, two.data_files)
        with pytest.raises(NnhalError, match="is nothing that this driver noted to have written for the token"):
            checked_prepared(served, outline(large(1)), Hints(cache=mixed), restore=True)

"""Devices and their cache files: asked by one function each, with what they answer looked at."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nnhal.base.errors import ContractBroken, DriverFailed, InvalidArgument, OperationFailed
from nnhal.base.levels import V1_1, V1_2
from nnhal.drivers.samples.full import FullV1_3, PreparedV1_3
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache import keeper, tokens
from nnhal.hal.cache.files import Cache, CacheContent, CacheFiles, DamagedCacheFile, read_refusal, written_by
from nnhal.hal.cache.tokens import TokenStore
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Device, Hints
from nnhal.hal.wrappers import Limited, PreparedWithHalLevel, Recorded, WithHalLevel, WithOptions
from nnhal.model.graph import Model
from nnhal.model.parts import outline
from tests import requests
from tests.models import make_model

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]

X = np.float32([1, -2, 3])


@pytest.fixture
def cache() -> Iterator[Cache]:
    """An empty model file and an empty data file."""
    with ExitStack() as files:
        model, data = (files.enter_context(tempfile.TemporaryFile(buffering=0)).fileno() for _ in range(2))
        yield Cache(bytes(range(32)), (model,), (data,))


def test_who_saves_later_waits_until_preparing_is_over_however_it_ends(cache: Cache) -> None:
    class Failing(FullV1_3):
        def prepare(self, model: Model, hints: Hints) -> Any:
            assert not cache.settled.is_set()
            raise OperationFailed("not today")

    with pytest.raises(OperationFailed, match="not today"):
        checked_prepared(Failing(), scaled(), Hints(cache=cache))
    assert cache.settled.is_set()


def scaled(by: float = 2.0) -> Model:
    return make_model(lambda b, x: b.mul(x, np.full(3, by, np.float32)), (3,), name="scaled")


def sizes(cache: Cache) -> list[int]:
    return [os.fstat(fd).st_size for fd in cache.files]


def results(prepared: Any) -> list[float]:
    return list(requests.run(prepared, [X]).results[0])


def test_files_are_those_of_the_model_first(cache):
    assert cache.files == (*cache.model_files, *cache.data_files)


def test_a_device_that_says_nothing_keeps_nothing():
    class Plain(Device):
        def supports(self, model: Model) -> Any: ...
        def prepare(self, model: Model, hints: Hints) -> Any: ...

    assert cache_files_by(Plain()) == CacheFiles(0, 0)
    with pytest.raises(OperationFailed, match=r"restore\(\) is missing"):
        Plain().restore(CacheContent(), bytes(32), Hints())


def test_below_1_2_nothing_is_asked():
    class Old(FullV1_3):
        level = V1_1

        def number_of_cache_files(self) -> Any:
            raise AssertionError

    assert cache_files_by(Old()) == CacheFiles()
    assert cache_files_by(WithHalLevel(FullV1_3(), V1_2)) == CacheFiles(1, 1)


@pytest.mark.parametrize(
    "answer", [(33, 0), (0, 33), (-1, 0), (0, -1), (1,), (1, 1, 1), (True, 0), (1.0, 0), None, [1, 1]]
)
def test_a_number_of_files_that_cannot_be_is_the_drivers_fault(answer):
    device = FullV1_3()
    device.number_of_cache_files = lambda: answer  # type: ignore[method-assign]
    with pytest.raises(ContractBroken, match=r"device sample-full-1.3: .*gave .*, must be two numbers of 0 to 32"):
        cache_files_by(device)


@pytest.mark.parametrize("answer", [(0, 0), (32, 32), CacheFiles(1, 0)])
def test_any_other_number_is_taken(answer):
    device = FullV1_3()
    device.number_of_cache_files = lambda: answer  # type: ignore[method-assign]
    assert cache_files_by(device) == answer and isinstance(cache_files_by(device), CacheFiles)


def test_what_was_saved_is_restored(cache):
    prepared = checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    assert all(sizes(cache))
    restored = checked_prepared(FullV1_3(), outline(scaled()), Hints(cache=cache), restore=True)
    assert results(prepared) == results(restored) == [2, -4, 6]
    assert not restored.model.main.operations


def test_without_files_nothing_is_saved():
    device = FullV1_3()
    prepared = checked_prepared(device, scaled(), Hints())
    assert prepared.save(CacheContent.empty(CacheFiles(1, 1), scaled().pools))


def test_the_outline_is_what_is_seen_from_outside():
    model = make_model(lambda b, x: b.reshape(b.mul(x, np.ones(3, np.float32)), (-1, 3)), name="m", x=(None, 3))
    seen = outline(model)
    assert (seen.main.operations, seen.referenced, seen.values) == ((), (), b"")
    assert [seen.main.operands[i].dimensions for i in (*seen.main.inputs, *seen.main.outputs)] == [(0, 3), (0, 3)]
    assert seen.main.operands[seen.main.inputs[0]].name == "x" and seen.name == "m"


def test_a_driver_that_fails_to_save_leaves_empty_files(cache, caplog):
    class Failing(PreparedV1_3):
        def save(self, files: CacheContent) -> bool:
            files.model[0]["x"] = b"1"
            raise KeyError("x")

    device = FullV1_3()
    device.prepare = lambda model, hints: Failing(model)  # type: ignore[method-assign]
    for fd in cache.files:
        os.write(fd, b"before")
    assert results(checked_prepared(device, scaled(), Hints(cache=cache))) == [2, -4, 6]
    assert [read_refusal(fd) for fd in cache.files] == ["save() raised KeyError: 'x'", ""] and sizes(cache)[1] == 0
    assert "its compilation is not kept: device sample-full-1.3: save() raised KeyError: 'x'" in caplog.text


def test_a_driver_that_saves_nothing_leaves_the_files_as_they_are(cache):
    class Silent(PreparedV1_3):
        def save(self, files: CacheContent) -> bool:
            return False

    device = FullV1_3()
    device.prepare = lambda model, hints: Silent(model)  # type: ignore[method-assign]
    checked_prepared(device, scaled(), Hints(cache=cache))
    assert sizes(cache) == [0, 0]


def test_what_is_restored_must_be_a_prepared_model_of_its_own(cache):
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    device, one = FullV1_3(), PreparedV1_3(scaled())
    device.restore = lambda *_: one  # type: ignore[method-assign]
    assert checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True).inner is one
    with pytest.raises(ContractBroken, match=r"prepare_from_cache\(\) gave a Prepared that it gave before"):
        checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)
    device.restore = lambda *_: "model"  # type: ignore[method-assign,assignment,return-value]
    with pytest.raises(ContractBroken, match=r"prepare_from_cache\(\) gave 'model', must give a Prepared"):
        checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)
    device.restore = lambda *_: {}["x"]  # type: ignore[method-assign]
    with pytest.raises(DriverFailed, match=r"prepare_from_cache\(\) raised KeyError: 'x'"):
        checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)


def test_a_restored_model_takes_turns_as_a_prepared_one_does(cache):
    device = FullV1_3()
    device.one_at_a_time = True
    checked_prepared(device, scaled(), Hints(cache=cache))
    restored = checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)
    (link,) = restored.queues
    assert link.queue is device._device_state.queues["run"] and link.queue.strict


# ------------------------------------------------------------------------------------------------------------ wrappers


def test_wrappers_pass_on_what_is_kept(cache):
    calls: list[str] = []
    wrapped = Recorded(Limited(FullV1_3(), lambda model, n: True), calls)
    checked_prepared(wrapped, scaled(), Hints(cache=cache))
    for device in (wrapped, FullV1_3(), WithHalLevel(FullV1_3(), V1_2), WithOptions(FullV1_3(), {"a": 1})):
        assert results(checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)) == [2, -4, 6]
    assert cache_files_by(wrapped) == CacheFiles(1, 1)
    assert calls.count("prepare_from_cache") == 1 and calls.count("number_of_cache_files") == 1


def test_a_level_is_kept_to_after_restoring(cache):
    device = WithHalLevel(FullV1_3(), V1_2)
    checked_prepared(device, scaled(), Hints(cache=cache))
    restored = checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)
    assert isinstance(restored.inner, PreparedWithHalLevel)
    with pytest.raises(OperationFailed, match=r"executeFenced needs level 1.3"):
        restored.execute_fenced(restored.request([X]), requests.Control())


def test_what_a_driver_is_told_follows_its_wrappers():
    told = WithOptions(WithOptions(FullV1_3(), {"a": 1, "b": 1}), {"b": 2, "c": 2}).effective_hints(
        Hints(options={"a": 0, "d": 0})
    )
    assert told.options == {"a": 1, "b": 1, "c": 2, "d": 0}
    hints = Hints(deadline=5, options={"a": 1})
    assert FullV1_3().effective_hints(hints) == hints
    assert WithHalLevel(FullV1_3(), V1_2).effective_hints(hints) == replace(hints, deadline=None)


# ---------------------------------------------------------------------------------------------------------- the record


def test_files_are_of_one_driver_version_and_processor(cache, monkeypatch):
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))

    class Later(FullV1_3):
        version = "later"

    class Native(FullV1_3):
        processor_matters = True

    for other in (Later(), Native()):
        with pytest.raises(DamagedCacheFile, match="is of another driver, version, engine or processor"):
            checked_prepared(other, outline(scaled()), Hints(cache=cache), restore=True)
    checked_prepared(Native(), scaled(), Hints(cache=cache))
    checked_prepared(Native(), outline(scaled()), Hints(cache=cache), restore=True)
    monkeypatch.setattr(keeper, "features", lambda: "another processor")
    with pytest.raises(DamagedCacheFile, match="is of another driver, version, engine or processor"):
        checked_prepared(Native(), outline(scaled()), Hints(cache=cache), restore=True)


def test_whether_the_processor_matters_is_true_or_false(cache):
    device = FullV1_3()
    device.processor_matters = "yes"  # type: ignore[assignment]
    with pytest.raises(InvalidArgument, match="processor_matters"):
        checked_prepared(device, outline(scaled()), Hints(cache=cache), restore=True)


def test_what_was_never_noted_is_not_restored(cache, state):
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    (record,) = state.glob("*.tokens")
    record.write_bytes(record.read_bytes()[:40])  # the key alone
    with pytest.raises(DamagedCacheFile, match="is nothing that this driver noted to have written for the token"):
        checked_prepared(FullV1_3(), outline(scaled()), Hints(cache=cache), restore=True)


def test_files_are_whole_where_the_driver_has_noted_them_whatever_version_wrote_them(cache, state):
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    (record,) = state.glob("*.tokens")
    noted, (fd, _) = record.read_bytes(), cache.files
    whole = os.pread(fd, 1 << 20, 0)
    identity = written_by(whole)
    assert identity is not None
    keeper.verify_files(cache)
    TokenStore.open("another driver")
    record.rename(record.with_name("service-0123456789abcdef.tokens"))  # the name that another process gave the driver
    keeper.verify_files(cache)
    record = record.with_name("service-0123456789abcdef.tokens")

    record.write_bytes(noted[:40])  # the key alone
    with pytest.raises(
        DamagedCacheFile, match="is nothing that a driver of this user noted to have written for the token"
    ):
        keeper.verify_files(cache)
    record.write_bytes(noted)
    os.pwrite(fd, bytes([whole[-1] ^ 1]), len(whole) - 1)
    with pytest.raises(DamagedCacheFile, match="damaged: model file 0"):
        keeper.verify_files(cache)
    os.pwrite(fd, b"?", 0)
    with pytest.raises(DamagedCacheFile, match="has its driver's private format, or is damaged"):
        keeper.verify_files(cache)
    with pytest.raises(DamagedCacheFile, match="has its driver's private format, or is damaged"):
        keeper.verify_files(Cache(cache.token))


def test_files_that_are_not_written_yet_are_whole(cache):
    keeper.verify_files(cache)


def test_the_hash_is_noted_before_anything_is_written(cache, monkeypatch):
    written = []
    monkeypatch.setattr(keeper, "write", lambda fd, data: written.append(len(state_of())) or None)

    def state_of() -> bytes:
        (record,) = Path(os.environ["NNHAL_STATE_DIR"]).glob("*.tokens")
        return record.read_bytes()

    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    assert written == [40 + 104] * 2


def test_a_record_that_is_no_more_is_begun_anew(cache, state):
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    for each in state.iterdir():
        each.unlink()
    with pytest.raises(DamagedCacheFile, match="another key"):
        checked_prepared(FullV1_3(), outline(scaled()), Hints(cache=cache), restore=True)
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    assert results(checked_prepared(FullV1_3(), outline(scaled()), Hints(cache=cache), restore=True)) == [2, -4, 6]


def test_a_process_with_a_record_opened_ahead_uses_no_other(cache, state, monkeypatch):
    monkeypatch.setattr(tokens, "_only", [TokenStore.open("ahead")])
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    assert [each.name.partition("-")[0] for each in state.glob("*.tokens")] == ["ahead"]


def test_where_no_record_can_be_nothing_is_restored_and_it_is_said_why(cache, state):
    state.write_text("a file")
    with pytest.raises(OperationFailed, match=r"no private record of what was cached: .*state is a link or no folder"):
        checked_prepared(FullV1_3(), outline(scaled()), Hints(cache=cache), restore=True)


def test_a_file_that_cannot_be_read_is_named(cache):
    checked_prepared(FullV1_3(), scaled(), Hints(cache=cache))
    with open(os.devnull, "wb") as closed:
        fd = closed.fileno()
        broken = replace(cache, data_files=(fd,))
        with pytest.raises(OperationFailed, match="data file 0"):
            checked_prepared(FullV1_3(), outline(scaled()), Hints(cache=broken), restore=True)


def test_the_processor_is_what_the_kernel_says():
    assert "flags" in keeper.features() or "Features" in keeper.features()
    assert keeper.features() == keeper.features()

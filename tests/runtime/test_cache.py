"""Compilation through a cache: the same results, and of every entry what became of it and why."""

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import OperandType
from nnhal.base.errors import DeadObject, InvalidArgument, OperationFailed
from nnhal.base.extensions import register_extension
from nnhal.base.levels import V1_2
from nnhal.drivers.litert.lowering import lower
from nnhal.drivers.reference import Reference
from nnhal.drivers.samples.full import FullV1_3, PreparedV1_3
from nnhal.hal.cache import keeper
from nnhal.hal.cache.files import MAGIC, REFUSAL, CacheContent, CacheFiles
from nnhal.hal.device import Hints, Prepared
from nnhal.hal.wrappers import Limited, Recorded, WithHalLevel, WithOptions
from nnhal.model.graph import Model
from nnhal.ops.schema import Form, Op, T, arg, out, register
from nnhal.runtime.cache import wanted
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.cache.tokens import token_of
from tests.models import doubling, make_model
from tests.runtime.devices import failing

pytestmark = [pytest.mark.cache, pytest.mark.usefixtures("state")]

X = np.array([1, -2, 3, 4], np.float32)


def scaled(by: float = 2.0, name: str = "m") -> Model:
    return make_model(lambda b, x: b.mul(x, b.constant(np.full(4, by, np.float32))), (4,), name=name)


def run(model: Model, folder: Path | None, devices: Any = None, by: float = 2.0, **settings: Any) -> str:
    """What became of the entry of a model of one step, whose result is right."""
    with nnhal.compile(model, devices=devices or [FullV1_3()], cache_dir=folder, **settings) as compiled:
        np.testing.assert_array_equal(compiled(X), X * np.float32(by))
        (outcome,) = compiled.cache
        return str(outcome)


MISS, HIT = "miss: there is no entry", "hit"


def test_the_second_compilation_is_a_hit(folder):
    assert [run(scaled(), folder) for _ in range(3)] == [MISS, HIT, HIT]


def test_a_hit_prepares_nothing(folder):
    run(scaled(), folder)
    calls: list[str] = []
    assert run(scaled(), folder, [Recorded(FullV1_3(), calls)]) == HIT
    assert "prepare" not in calls and "prepare_from_cache" in calls


def test_nothing_is_kept_unasked(monkeypatch, folder, tmp_path):
    assert run(scaled(), None) == "off: no cache folder was given"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setenv("NNHAL_CACHE_DIR", str(folder))
    assert [run(scaled(), None) for _ in range(2)] == [MISS, HIT]


def test_other_weights_another_structure_and_another_relaxation_are_other_models(folder):
    assert run(scaled(2), folder) == MISS
    assert run(scaled(3), folder, by=3) == MISS
    assert run(doubling(4, name="m"), folder) == MISS
    assert run(scaled(2), folder, relaxed=True) == MISS
    assert run(scaled(2), folder) == HIT


@pytest.mark.parametrize(
    "other",
    [
        {"preference": "LOW_POWER"}, {"priority": "HIGH"}, {"threads": 1},
        {"driver_options": {"sample-full-1.3": {"a": 1}}},
    ],
)  # fmt: skip
def test_what_the_driver_is_told_is_part_of_the_key(folder, other):
    run(scaled(), folder)
    assert run(scaled(), folder, **other) == MISS
    assert run(scaled(), folder, **other) == HIT


def test_options_of_a_wrapper_are_part_of_the_key(folder):
    run(scaled(), folder)
    assert run(scaled(), folder, [WithOptions(FullV1_3(), {"fast": True})]) == MISS
    assert run(scaled(), folder, [WithOptions(FullV1_3(), {"fast": False})]) == MISS
    assert run(scaled(), folder, [WithOptions(FullV1_3(), {"fast": True})]) == HIT


def test_a_wrapped_driver_finds_what_it_kept_unwrapped(folder):
    run(scaled(), folder)
    assert run(scaled(), folder, [Limited(FullV1_3(), lambda model, n: True)]) == HIT


def test_a_level_without_caching_keeps_nothing(folder):
    for level, outcome in ((nnhal.Level.V1_1, "off: the device keeps none"), (nnhal.Level.V1_2, MISS)):
        assert run(scaled(), folder, [WithHalLevel(FullV1_3(), level)]) == outcome


def test_options_that_cannot_be_written_down_keep_nothing(folder):
    values: list[Any] = [print, {1: 2}, [{"a": ({None: 0},)}]]
    for value in values:
        told = run(scaled(), folder, driver_options={"sample-full-1.3": {"f": value}})
        assert told.startswith("off: the options of the device cannot be written down")


def test_another_version_or_another_driver_is_a_miss(folder):
    class Later(FullV1_3):
        version = "later"

    class Other(FullV1_3):
        name = "other"

    run(scaled(), folder)
    assert run(scaled(), folder, [Later()]) == MISS
    assert run(scaled(), folder, [Other()]) == MISS
    assert run(scaled(), folder) == HIT


def test_what_a_device_says_of_itself_is_part_of_the_key(folder):
    """Of a wrapped device all is alike but this; what one kept must be found by none of the others."""

    class InAnotherLayout(FullV1_3):
        preferred_layout = "nchw"

    def kept_and_found(device: Any) -> tuple[str, str]:
        return run(scaled(), folder, [device]), run(scaled(), folder, [device])

    assert kept_and_found(FullV1_3()) == (MISS, HIT)
    assert kept_and_found(WithHalLevel(FullV1_3(), nnhal.Level.V1_2)) == (MISS, HIT)
    assert kept_and_found(InAnotherLayout()) == (MISS, HIT)


def test_a_driver_whose_code_changed_under_the_same_version_is_a_miss(folder, monkeypatch):
    run(scaled(), folder)
    real = keeper.identity
    monkeypatch.setattr(keeper, "identity", lambda *a, **k: real(a[0], a[1] + "x", *a[2:], **k))
    assert [run(scaled(), folder) for _ in range(2)] == [MISS, HIT]


def multiplied(by: int) -> Model:
    """A model of one operation of an extension whose kernel multiplies."""
    name = "com.example.kept"
    register_extension(name, operations=["TIMES"])
    operand = arg("input", T, "batch length")
    kind = {OperandType.TENSOR_FLOAT32: V1_2}
    register(
        Op(f"{name}.TIMES", kind, (Form(operand),), (out("output", kind, "batch length"),), lambda a, x: x * by, doc="")
    )
    return make_model(lambda b, x: b.operation(f"{name}.TIMES", x), (1, 4), name="extended")


def test_another_kernel_of_an_extension_is_a_miss(folder):
    for by, outcome in ((2, MISS), (2, HIT), (3, MISS)):
        with nnhal.compile(multiplied(by), devices=[FullV1_3()], cache_dir=folder) as compiled:
            np.testing.assert_array_equal(compiled(X[None]), by * X[None])
            assert [str(each) for each in compiled.cache] == [outcome]


def test_each_part_of_a_model_has_an_entry(folder):
    model = make_model(lambda b, x: b.floor(b.mul(x, b.constant(np.full(4, 2, np.float32)))), (4,), name="parts")
    second = FullV1_3()
    second.name = "second"
    devices = [Limited(FullV1_3(), lambda m, n: n == 0), Limited(second, lambda m, n: n == len(m.main.operations) - 1)]
    found = []
    for _ in range(2):
        with nnhal.compile(model, devices=devices, cache_dir=folder) as compiled:
            np.testing.assert_array_equal(compiled(X), np.floor(2 * X))
            found.append([(each.device, str(each)) for each in compiled.cache])
    assert found == [[("sample-full-1.3", each), ("second", each)] for each in (MISS, HIT)]


# -------------------------------------------------------------------------------------------------------------- tokens


def test_a_token_of_the_applications_stands_for_the_model(folder):
    token = bytes(range(32))
    assert [run(scaled(2), folder, token=token) for _ in range(2)] == [MISS, HIT]
    assert run(scaled(3), folder, by=2, token=token) == HIT  # it said that it is the same
    assert run(scaled(2), folder, token=token, relaxed=True) == MISS  # and can see that this is not
    assert run(scaled(3), folder, by=3, token=token[::-1]) == MISS


@pytest.mark.parametrize("token", ["x" * 32, b"x" * 31, b"x" * 33, 5, bytearray(32)])
def test_what_is_no_token_is_refused(folder, token):
    with pytest.raises(InvalidArgument, match=r"token is .*, must be 32 bytes"):
        nnhal.compile(scaled(), cache_dir=folder, token=token)


@pytest.mark.parametrize("path", ["", 5, b"", True, "a\0b", Path("a\0b")])
def test_what_is_no_folder_is_refused(path):
    with pytest.raises(InvalidArgument, match=r"cache_dir is .*, must be the path of a folder"):
        nnhal.compile(scaled(), cache_dir=path)


def test_a_tilde_is_the_users_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    run(scaled(), "~/here")  # type: ignore[arg-type]
    assert (tmp_path / "here" / "uses").exists()
    why = "off: the folder ~nobody-of-this-name/here is below a home folder that is not known"
    assert run(scaled(), "~nobody-of-this-name/here") == why  # type: ignore[arg-type]


def test_a_size_that_is_none_is_refused(monkeypatch, folder):
    monkeypatch.setenv("NNHAL_CACHE_SIZE", "1 GB")
    with pytest.raises(InvalidArgument, match="NNHAL_CACHE_SIZE is '1 GB', must be a number of MiB"):
        nnhal.compile(scaled(), cache_dir=folder)
    monkeypatch.setenv("NNHAL_CACHE_SIZE", "3")
    assert wanted.quota() == 3 << 20


def test_the_users_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert wanted.user_folder() == tmp_path / "nnhal" / "compiled"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert wanted.user_folder() == tmp_path / ".cache" / "nnhal" / "compiled"


TOKEN = """
import sys, nnhal, numpy as np
from pathlib import Path
from nnhal.runtime.cache.folder import CacheFolder
from nnhal.runtime.cache.tokens import token_of
b = nnhal.Builder("m")
x = b.input((4,))
model = b.finish([x], [b.mul(x, b.constant(np.full(4, 2, np.float32)))])
print(token_of(model, CacheFolder(Path(sys.argv[1]), 1)).hex())
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", ["hash seed", "locale", "time zone", "working directory", "umask"])
def test_a_token_is_the_same_everywhere(folder, tmp_path, place):
    changed = {
        "hash seed": {"PYTHONHASHSEED": "7"},
        "locale": {"LC_ALL": "C", "LANG": "tr_TR.UTF-8"},
        "time zone": {"TZ": "Asia/Tokyo"},
    }.get(place, {})
    told = subprocess.check_output(
        [sys.executable, "-c", TOKEN, str(tmp_path / "another")],
        env=os.environ | changed,
        cwd="/" if place == "working directory" else None,
        umask=0o077 if place == "umask" else -1,
        text=True,
    )
    assert bytes.fromhex(told) == token_of(scaled(), CacheFolder(folder, 1))


def large(tmp_path: Path) -> Path:
    """A file with weights beside its operations."""
    model = make_model(lambda b, x: b.mul(x, b.constant(np.ones(5000, np.float32))), (5000,), name="large")
    file = tmp_path / "m.tflite"
    file.write_bytes(lower(model).content)
    return file


def test_weights_of_a_file_are_hashed_once_until_it_changes(folder, tmp_path, monkeypatch):
    from nnhal.runtime.cache import tokens

    hashed: list[int] = []
    real = tokens._hashed
    monkeypatch.setattr(tokens, "_hashed", lambda pool: hashed.append(pool.size) or real(pool))
    file = large(tmp_path)

    def token() -> bytes:
        return token_of(nnhal.load(file), CacheFolder(folder, 1))

    first = token()
    assert [token(), len(hashed)] == [first, 2]  # it changed a moment ago: nothing is kept
    monkeypatch.setattr(tokens, "SETTLED_NS", 0)
    assert [token(), token(), token(), len(hashed)] == [first, first, first, 3]
    times = file.stat()
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))  # its time of change tells
    assert token() != first and len(hashed) == 4


def test_a_hash_that_cannot_be_kept_is_the_same(folder, tmp_path, monkeypatch):
    from nnhal.runtime.cache import tokens

    file = large(tmp_path)
    expected = token_of(nnhal.load(file), CacheFolder(folder, 1))
    monkeypatch.setattr(tokens, "SETTLED_NS", 0)
    monkeypatch.setattr(os, "pwrite", failing(OSError(errno.ENOSPC, "no space left on device")))
    assert token_of(nnhal.load(file), CacheFolder(folder, 1)) == expected


# -------------------------------------------------------------------------------------------------------------- damage


def files_of(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.name.split(".")[-1] in ("m0", "d0"))


def test_a_damaged_entry_is_a_miss_with_its_reason_and_mended(folder):
    run(scaled(), folder)
    for n, kind in enumerate(("data", "model")):
        file = files_of(folder)[n]
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        assert run(scaled(), folder).startswith(f"miss: damaged: {kind} file 0 is not what was written")
        assert run(scaled(), folder) == HIT


def test_an_old_entry_in_the_place_of_the_new_one_is_still_one_that_was_written(folder):
    run(scaled(), folder)
    kept = folder.with_name("copy")
    shutil.copytree(folder, kept)
    shutil.rmtree(folder)
    run(scaled(), folder)
    shutil.rmtree(folder)
    shutil.copytree(kept, folder)
    folder.chmod(0o700)
    assert run(scaled(), folder) == HIT


def test_a_folder_that_others_may_write_is_not_used(folder):
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    told = run(scaled(), folder)
    assert told == f"off: the folder {folder} has mode 0777, must be this user's alone (chmod go-rwx)"
    assert list(folder.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_not_followed(folder, tmp_path):
    run(scaled(), folder)
    victim = tmp_path / "victim"
    for kind in range(2):
        file = files_of(folder)[kind]
        file.rename(victim)
        file.symlink_to(victim)
        before = victim.read_bytes()
        assert run(scaled(), folder).startswith("miss: the entry cannot be opened: too many levels of symbolic links")
        assert victim.read_bytes() == before
        assert run(scaled(), folder) == HIT


def test_without_a_private_record_nothing_is_kept_and_all_runs(folder, state):
    state.touch()
    told = run(scaled(), folder)
    assert told.startswith("miss: there is no entry; the device did not keep it: no private record of what was cached:")


# ---------------------------------------------------------------------------------------------------- drivers that lie


class Lying(FullV1_3):
    """A driver that keeps compilations, and does one thing wrong."""

    name = "lying"
    save: Callable[..., Any] | None = None

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        prepared = PreparedV1_3(model)
        if self.save is not None:
            prepared.save = self.save.__get__(prepared)  # type: ignore[method-assign]
        return prepared


def lying(**methods: Callable[..., Any]) -> Lying:
    device = Lying()
    device.save = methods.pop("save", None)
    vars(device).update({name: method.__get__(device) for name, method in methods.items()})
    return device


fails = failing(KeyError("conv_weights"))


def nothing_in(folder: Path) -> bool:
    """Whether nothing of an entry is left in it."""
    return [each.name for each in folder.iterdir()] == ["making"] and not list((folder / "making").iterdir())


def says(answer: Any) -> Callable[..., Any]:
    return lambda *_: answer


FILES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "raises": (fails, "raised KeyError: 'conv_weights'"),
    "no numbers": (says("1, 1"), "must be two numbers of 0 to 32"),
    "too many": (says((33, 0)), "must be two numbers of 0 to 32"),
    "too few": (says((-1, 0)), "must be two numbers of 0 to 32"),
    "three": (says((1, 1, 1)), "must be two numbers of 0 to 32"),
    "truths": (says((True, False)), "must be two numbers of 0 to 32"),
}


@pytest.mark.parametrize("lie", FILES)
def test_a_driver_that_cannot_say_how_many_files_it_keeps_keeps_none(folder, lie):
    method, why = FILES[lie]
    told = run(scaled(), folder, [lying(number_of_cache_files=method)])
    assert told.startswith("off: the driver failed to report its number of cache files:") and why in told


def half(self: PreparedV1_3, files: CacheContent) -> bool:
    PreparedV1_3.save(self, files)
    raise MemoryError


def to_a_file_more(self: PreparedV1_3, files: CacheContent) -> bool:
    files.model[1]["x"] = b""
    return True


SAVES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "raises": (fails, "the device did not keep it: save() raised KeyError: 'conv_weights'"),
    "half": (half, "the device did not keep it: save() ran out of memory"),
    "no bytes": (
        lambda self, files: files.model[0].update(x="text") or True,
        "the device did not keep it: save() gave 'text' for section x, must be contiguous bytes",
    ),
    "nothing": (says(None), "the device did not keep it: the result of save() is None, must be a bool"),
    "no truth": (says("yes"), "the device did not keep it: the result of save() is 'yes', must be a bool"),
    "says no": (says(False), "the device kept nothing of it"),
    "a file more": (to_a_file_more, "the device did not keep it: save() raised IndexError: list index out of range"),
}


@pytest.mark.parametrize("lie", SAVES)
def test_a_driver_that_fails_to_save_runs_and_keeps_nothing(folder, lie):
    save, why = SAVES[lie]
    for _ in range(2):
        assert run(scaled(), folder, [lying(save=save)]) == f"miss: there is no entry; {why}"
    assert nothing_in(folder)


RESTORES: Mapping[str, tuple[Callable[..., Any], str]] = {
    "raises": (fails, "KeyError: 'conv_weights'"),
    "nothing": (says(None), "prepare_from_cache() gave None, must give a Prepared"),
    "another thing": (says("model"), "must give a Prepared"),
    "refuses": (lambda *_: (_ for _ in ()).throw(OperationFailed("the engine is busy")), "the engine is busy"),
    "says invalid": (lambda *_: (_ for _ in ()).throw(InvalidArgument("no")), "no"),
}


@pytest.mark.parametrize("lie", RESTORES)
def test_a_driver_that_fails_to_restore_prepares_anew(folder, lie):
    run(scaled(), folder, [Lying()])
    method, why = RESTORES[lie]
    for _ in range(2):
        told = run(scaled(), folder, [lying(restore=method)])
        assert told.startswith("miss: ") and why in told


def test_an_entry_that_ends_a_drivers_process_is_tried_again_after_ever_more_starts(folder):
    class Died(Lying):
        deaths = 0

        def restore(self, *_: Any) -> Prepared:
            Died.deaths += 1
            raise DeadObject("device lying: the driver process ended")

    device = Died()
    assert run(scaled(), folder, [device]) == MISS
    died = "off: its driver's process ended when it was restored: device lying: the driver process ended"
    again = [f"{died}; it is tried again after {n} starts" for n in (3, 2, 1)]
    told = [run(scaled(), folder, [device]) for _ in range(7)]
    assert told == [died, died, again[2], died, *again] and Died.deaths == 3
    (entry,) = CacheFolder(folder, 1 << 20).entries()
    assert entry.problem == died.removeprefix("off: ")
    Died.restore = FullV1_3.restore  # type: ignore[method-assign]
    assert [run(scaled(), folder, [device]) for _ in range(2)] == [HIT, HIT]
    (entry,) = CacheFolder(folder, 1 << 20).entries()
    assert entry.problem == "" and entry.manifest is not None and entry.manifest.deaths == 0


def test_a_name_of_any_length_is_no_obstacle(folder):
    assert [run(scaled(name="n" * 2_000_000), folder) for _ in range(2)] == [MISS, HIT]


def test_a_driver_that_fails_only_while_it_is_to_keep_something_runs(folder):
    def prepare(self: Lying, model: Model, hints: Hints) -> Prepared:
        if hints.cache is not None:
            raise OperationFailed("no room")
        return PreparedV1_3(model)

    told = run(scaled(), folder, [lying(prepare=prepare)])
    assert told == "miss: there is no entry; the driver failed while it was to keep it: device lying: no room"
    assert nothing_in(folder)


def test_hints_that_a_driver_refuses_are_an_error_with_a_cache_too(folder):
    with pytest.raises(InvalidArgument, match="option x is unknown"):
        run(scaled(), folder, [lying(prepare=failing(InvalidArgument("option x is unknown")))])


class OwnFiles(Reference):
    """A driver that writes and reads the files itself, as drivers of the HAL do."""

    name = "own"

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(2, 1)

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if hints.cache is not None:
            for fd in hints.cache.files:
                os.write(fd, hints.cache.token)
        return super().prepare(model, hints)

    def prepare_from_cache(self, outline: Model, hints: Hints) -> Prepared:
        assert hints.cache is not None and not outline.main.operations
        assert [os.read(fd, 99) for fd in hints.cache.files] == [hints.cache.token] * 3
        return super().prepare(scaled(), hints)


def test_a_driver_may_see_to_its_files_itself(folder):
    assert [run(scaled(), folder, [OwnFiles()]) for _ in range(2)] == [MISS, HIT]


# ------------------------------------------------------------------------------------------------ the system's refusals

WRITES = ["write", "pwrite", "fsync", "rename", "unlink", "ftruncate", "mkdir"]
CALLS = {os: ["open", "read", "pread", "listdir", "fstat", "stat", *WRITES], fcntl: ["lockf"]}
ERRORS = [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EMFILE, errno.EIO]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
@pytest.mark.parametrize("there", [False, True], ids=["saving", "restoring"])
def test_a_refusal_of_the_system_at_any_call_is_no_failure(folder, state, monkeypatch, number, there):
    if there:
        run(scaled(), folder)
    model, device = scaled(), FullV1_3()
    with nnhal.compile(model, devices=[device]):  # what has nothing to do with caches is done
        pass
    for left in range(200):
        count = 0

        def failing(call: Any, at: int = left) -> Any:
            def run(*a: Any, **k: Any) -> Any:
                nonlocal count
                count += 1
                if count > at:
                    raise OSError(number, os.strerror(number))
                return call(*a, **k)

            return run

        keeper._stores.forget()
        with monkeypatch.context() as patch:
            for module, names in CALLS.items():
                for name in names:
                    patch.setattr(module, name, failing(getattr(module, name)))
            compiled = nnhal.compile(model, devices=[device], cache_dir=folder)
            (outcome,) = compiled.cache
        np.testing.assert_array_equal(compiled(X), 2 * X)
        compiled.close()
        if count <= left:
            break
        assert outcome.reason or outcome.state == "hit"
        if not there:
            shutil.rmtree(folder, ignore_errors=True)
    assert left > 20 and str(outcome) == (HIT if there else MISS)


def test_a_file_system_without_locks_keeps_compilations_too(folder, monkeypatch):
    monkeypatch.setattr(fcntl, "lockf", refusing(errno.ENOLCK))
    assert [run(scaled(), folder) for _ in range(2)] == [MISS, HIT]


def test_a_folder_that_is_replaced_within_the_cache_is_named_where_nothing_can_be_kept(folder):
    run(scaled(), folder)
    making = Path(folder) / "making"
    making.rmdir()
    making.symlink_to(folder)
    assert run(scaled(), folder) == HIT
    said = run(scaled(3), folder, by=3)
    assert said == f"{MISS}; it cannot be kept: {making} is a link or no folder, must be a folder"


def refusing(number: int) -> Callable[..., Any]:
    return failing(OSError(number, os.strerror(number)))


def test_a_disk_for_reading_only_hits(folder, monkeypatch):
    run(scaled(), folder)
    keeper._stores.forget()
    open_, writing = os.open, os.O_RDWR | os.O_WRONLY | os.O_CREAT

    def read_only(path: Any, flags: int, *a: Any, **k: Any) -> int:
        return refusing(errno.EROFS)() if flags & writing else open_(path, flags, *a, **k)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", read_only)
        for name in ("unlink", "rename", "pwrite", "write", "ftruncate"):
            patch.setattr(os, name, refusing(errno.EROFS))
        assert run(scaled(), folder) == HIT
        assert run(scaled(3), folder, by=3) == f"{MISS}; it cannot be kept: read-only file system"


@pytest.mark.parametrize(
    "start", [[MAGIC], [MAGIC, REFUSAL, bytes(1)]], ids=["no room for the files", "no room at all"]
)
def test_a_full_disk_is_named(folder, monkeypatch, start):
    pwrite = os.pwrite

    def full(fd: int, data: Any, at: int) -> int:
        return refusing(errno.ENOSPC)() if bytes(data[:8]) in start else pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)
    assert run(scaled(), folder).endswith("no space left on device")
    assert nothing_in(folder)


def test_an_interrupted_saving_closes_what_was_prepared(folder, interrupts):
    closed: list[int] = []

    def save(self: PreparedV1_3, files: CacheContent) -> bool:
        self.close = lambda: closed.append(1)  # type: ignore[method-assign]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(scaled(), folder, [lying(save=save)])
    assert closed == [1]
    assert nothing_in(folder)

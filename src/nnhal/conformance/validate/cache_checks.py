"""Checks of the compilation cache: a restored model computes the same, and changed files are a miss."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from nnhal.base.errors import MissedDeadline, NnhalError
from nnhal.base.records import replace
from nnhal.conformance.differential import arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.limits import counted, driver_pid
from nnhal.conformance.validate.state import data_sets
from nnhal.conformance.validate.trial import PLAIN, NotAccepted, Trial, copies
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import TOKEN_SIZE, Cache, CacheFiles
from nnhal.hal.chain import checked_restored
from nnhal.hal.device import Prepared, layout_of
from nnhal.model.graph import Model
from nnhal.model.layouts import with_layout
from nnhal.model.parts import outline

TOKEN, OTHER = bytes(range(TOKEN_SIZE)), bytes(range(1, TOKEN_SIZE + 1))
RESTORES = 8  # models that are restored and closed
FLIPS = 48  # bits of each file
SAVES_NOTHING = "the driver saves none of the supported calls"


@check("cache-files", "number_of_cache_files() returns two numbers from 0 to 32, the same ones each time.", whole=True)
def cache_files(trial: Trial) -> int:
    with trial.stages.enter("number_of_cache_files"):
        counts = [cache_files_by(trial.device) for _ in range(3)]
    if len(set(counts)) > 1:
        trial.unmet(f"number_of_cache_files() returns {' and then '.join(map(str, map(tuple, dict.fromkeys(counts))))}")
    return len(counts) - 1


@check(
    "cache-saved",
    "A compilation with cache files computes the same as one without.",
    ("stale-output",),
    unseen=SAVES_NOTHING,
)
def saved(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        prepared = trial.prepare(model, replace(PLAIN, cache=cache))
        _computes(trial, call, model, prepared, "when it is saved")
        seen += _written(cache)
    return seen


@check(
    "cache-restored",
    "A restored model computes the same as the prepared one, each time, and releases its resources.",
    ("cache-saved",),
    unseen=SAVES_NOTHING,
)
def restored(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
        if not _written(cache):
            continue
        seen += 1
        for _ in range(2):
            try:
                prepared = _restored(trial, model, cache)
            except NnhalError as error:
                trial.unmet(f"files that it has just saved are a miss: {error}")
            _computes(trial, call, model, prepared, "when it is restored")
            trial.close(prepared)
        if seen == 1:
            _releases(trial, model, cache)
    return seen


def _releases(trial: Trial, model: Model, cache: Cache) -> None:
    """Raise Unmet if each restored and closed model keeps a descriptor, thread or process."""
    pid = driver_pid(trial)
    try:
        before = counted(pid)
        for _ in range(RESTORES):
            trial.close(_restored(trial, model, cache))
        after = counted(pid)
    except OSError:  # the process cannot be read
        return
    for what, number in before.items():
        kept = after[what] - number
        if kept >= RESTORES:
            trial.unmet(f"{RESTORES} models that were restored and closed keep {kept} {what}, must keep none")


@check(
    "cache-damaged",
    "Changed files are a miss, and nothing worse.",
    ("cache-restored",),
    unseen=SAVES_NOTHING,
)
def damaged(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
        for fd in cache.files:
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            for what, broken in _broken(data, trial):
                _fill(fd, broken)
                _missed(trial, call, model, cache, what)
                seen += bool(data)
            _fill(fd, data)
    return seen


@check(
    "cache-token",
    "Files of another token or of another model are a miss.",
    ("cache-restored",),
    unseen=SAVES_NOTHING,
)
def token(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
        if _written(cache):
            other = Cache(OTHER, cache.model_files, cache.data_files, cache.kept_by)
            _missed(trial, call, model, other, "of another token", at_all=True)
            seen += 1
    return seen


def _saved(trial: Trial) -> Iterator[tuple[Call, Model, Cache]]:
    """Yield the samples, each with empty files for it. NotTaken if the driver has no compilation cache."""
    trial.fixed()
    with trial.stages.enter("number_of_cache_files"):
        count = cache_files_by(trial.device)
    if not count:
        raise NotAccepted("the driver has no compilation cache: number_of_cache_files() returns 0, 0")
    for call, model in trial.samples():
        with _files(count) as cache:
            yield call, model, cache
        trial.end()


@contextmanager
def _files(count: CacheFiles) -> Iterator[Cache]:
    with ExitStack() as open_files:
        fds = [open_files.enter_context(tempfile.TemporaryFile(buffering=0)).fileno() for _ in range(sum(count))]
        yield Cache(TOKEN, tuple(fds[: count.model]), tuple(fds[count.model :]))


def _written(cache: Cache) -> bool:
    return any(os.fstat(fd).st_size for fd in cache.files)


def _restored(trial: Trial, model: Model, cache: Cache) -> Prepared:
    for fd in cache.files:
        os.lseek(fd, 0, os.SEEK_SET)
    seen = outline(with_layout(model, layout_of(trial.device)).model)
    with trial.stages.enter("prepare_from_cache"):
        return trial.opened(checked_restored(trial.device, seen, replace(PLAIN, cache=cache)))


def _computes(trial: Trial, call: Call, model: Model, prepared: Prepared, what: str) -> None:
    for each, arrays, wanted in data_sets(trial, call, model, 3):
        trial.same(each, wanted, trial.run(prepared, copies(arrays)), what)


def _missed(trial: Trial, call: Call, model: Model, cache: Cache, what: str, *, at_all: bool = False) -> None:
    """Raise Unmet if files do harm. at_all: already if they are accepted, whatever they compute."""
    try:
        prepared = _restored(trial, model, cache)
    except MissedDeadline as error:
        trial.unmet(f"files {what}: {error}")
    except NnhalError:
        return
    if at_all:
        trial.unmet(f"files {what} are accepted, must be a miss")
    wanted = trial.alone(model, arrays_of(call))
    try:
        results = trial.run(prepared, copies(arrays_of(call)))
    except NnhalError as error:
        trial.unmet(f"files {what} are accepted, and the execution fails: {error}")
    problem = trial.differs(call, wanted, results)
    if problem:
        trial.unmet(f"files {what} are accepted, and change results: {problem}")
    trial.close(prepared)


def _broken(data: bytes, trial: Trial) -> Iterator[tuple[str, bytes]]:
    """Yield changed versions of a file, with their descriptions."""
    for what, broken in _changed(data, trial):
        if broken != data:
            yield what, broken


def _changed(data: bytes, trial: Trial) -> Iterator[tuple[str, bytes]]:
    yield "that are empty", b""
    yield "with more bytes at the end", data + bytes(64)
    for length in sorted({1, len(data) // 2, max(0, len(data) - 1)}):
        yield f"cut off after byte {length}", data[:length]
    yield "of zeros", bytes(len(data))
    for _ in range(FLIPS if data else 0):
        bit = int(trial.rng.integers(8 * len(data)))
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        yield f"with bit {bit % 8} of byte {bit // 8} flipped", bytes(broken)


def _fill(fd: int, data: bytes) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)

"""Checks of the compilation cache: a restored model computes the same, and changed files are a miss."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from nnhal.base.errors import MissedDeadline, NnhalError
from nnhal.base.records import replace
from nnhal.conformance.cache_files import OTHER, empty_files, is_written, restored_from
from nnhal.conformance.differential import arrays_of, model_of, other_constants
from nnhal.conformance.draw import Call
from nnhal.conformance.validate.check import check
from nnhal.conformance.validate.limits import counted, driver_pid
from nnhal.conformance.validate.state import DataSet, at_once, data_sets, pooled_samples
from nnhal.conformance.validate.trial import PLAIN, NotAccepted, Trial, copies, distinct
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import Cache, CacheFiles, read_refusal
from nnhal.hal.device import Prepared
from nnhal.model.graph import Model

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
        seen += is_written(cache)
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
        if not is_written(cache):
            continue
        seen += 1
        for _ in range(2):
            prepared = _restored_now(trial, model, cache)
            _computes(trial, call, model, prepared, "when it is restored")
            trial.close(prepared)
        if seen == 1:
            _releases(trial, model, cache)
    pooled = next(pooled_samples(trial), None)
    more = [] if pooled is None else [(pooled[0], pooled[2])]
    for call, model, cache in _each_saved(trial, [*more, *_with_other_parameters(trial)]):
        trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
        if is_written(cache):
            wanted = trial.alone(model, arrays_of(call))
            results = trial.run(_restored_now(trial, model, cache), copies(arrays_of(call)))
            trial.same(call, wanted, results, f"when it is restored ({call.cell})")
    return seen


def _with_other_parameters(trial: Trial) -> Iterator[tuple[Call, Model]]:
    """Yield supported calls whose parameters have values that no sample has, ordinary calls first."""
    known = {each for call, _ in trial.calls.samples() for each in _parameters(call)}
    for call, model in sorted(trial.calls.taken(), key=lambda pair: pair[0].cell.values != "ordinary"):
        fresh = set() if call.open else set(_parameters(call)) - known
        if fresh:
            with suppress(NnhalError):  # the reference rejects some values
                if any(w is not None and w.size for w in trial.calls.wanted(model, arrays_of(call))):
                    known |= fresh
                    yield call, model


def _parameters(call: Call) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers, flags and enumerators that the model has as constants, by the argument's name."""
    if type(call) is not Call:  # control flow has none
        return
    for place, (argument, value) in enumerate(zip(call.arguments, call.inputs, strict=True)):
        if value is not None and argument.scalar and value.array.dtype.kind in "biu" and place not in call.given:
            yield argument.name, int(value.array)


@check(
    "cache-interleaved",
    "Restored models do not affect each other, whether their executions alternate or overlap.",
    ("cache-restored",),
    unseen=SAVES_NOTHING,
)
def interleaved(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        other = other_constants(call, trial.calls.rng)
        other_model = model_of(other)
        with empty_files(CacheFiles(len(cache.model_files), len(cache.data_files)), OTHER) as its:
            try:
                own, others = data_sets(trial, call, model), data_sets(trial, other, other_model, 2)
            except NnhalError:  # a valid failure with other constants
                continue
            trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
            trial.close(trial.prepare(other_model, replace(PLAIN, cache=its)))
            if not (is_written(cache) and is_written(its)):
                continue
            prepared = [
                _restored_now(trial, m, files) for m, files in ((model, cache), (model, cache), (other_model, its))
            ]
            _independent(trial, prepared, (own[:2], own[2:], others))
            seen += distinct(*(wanted for _, _, wanted in (*own, *others)))
    return seen


def _independent(trial: Trial, prepared: Sequence[Prepared], sets: Sequence[Sequence[DataSet]]) -> None:
    """Raise RequirementNotMet if one of several models, each with its inputs and results, affects another."""
    runs = [(which, *each) for several in zip(*sets, strict=True) for which, each in enumerate(several)]
    for which, call, arrays, wanted in (*runs, *runs[::-1]):
        results = trial.run(prepared[which], copies(arrays))
        trial.same(call, wanted, results, "alternating with other restored models")
    for place, results in at_once(trial, [(prepared[which], arrays) for which, _, arrays, _ in runs]):
        _, call, _, wanted = runs[place]
        trial.same(call, wanted, results, "at the same time as other restored models")
    trial.close(prepared[0])
    for which, call, arrays, wanted in runs:
        if which:
            results = trial.run(prepared[which], copies(arrays))
            trial.same(call, wanted, results, "after another restored model was closed")


def _releases(trial: Trial, model: Model, cache: Cache) -> None:
    """Raise RequirementNotMet if each restored and closed model keeps a descriptor, thread or process."""
    before = _held(trial)
    for _ in range(RESTORES):
        trial.close(_restored(trial, model, cache))
    _require_released(trial, before, RESTORES, "models that were restored and closed")


def _held(trial: Trial) -> dict[str, int]:
    """Return the numbers of descriptors, threads and processes of the driver's process; none if it cannot be read."""
    try:
        return counted(driver_pid(trial))
    except OSError:
        return {}


def _require_released(trial: Trial, before: dict[str, int], count: int, what: str) -> None:
    """Raise RequirementNotMet if each of `count` calls since `before` has kept a descriptor, thread or process."""
    after = _held(trial)
    for name, number in before.items():
        kept = after.get(name, 0) - number
        if kept >= count:
            trial.unmet(f"{count} {what} keep {kept} {name}, must keep none")


@check(
    "cache-damaged",
    "Changed files are a miss, and nothing worse: it keeps nothing, and later files are restored.",
    ("cache-restored",),
    unseen=SAVES_NOTHING,
)
def damaged(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
        before, misses = _held(trial), 0
        for fd in cache.files:
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            for what, broken in _broken(data, trial):
                _fill(fd, broken)
                misses += _missed(trial, call, model, cache, what)
                seen += bool(data)
            _fill(fd, data)
        if misses >= RESTORES:
            _require_released(trial, before, misses, "files that were a miss")
        if is_written(cache):
            prepared = _restored_now(trial, model, cache)
            _computes(trial, call, model, prepared, "when it is restored after files that were a miss")
            trial.close(prepared)
    return seen


@check(
    "cache-token",
    "Files of another token are a miss, also if one byte of it differs.",
    ("cache-restored",),
    unseen=SAVES_NOTHING,
)
def token(trial: Trial) -> int:
    seen = 0
    for call, model, cache in _saved(trial):
        trial.close(trial.prepare(model, replace(PLAIN, cache=cache)))
        if is_written(cache):
            for what, other in _other_tokens(cache.token):
                renamed = Cache(other, cache.model_files, cache.data_files, cache.kept_by)
                _missed(trial, call, model, renamed, what, at_all=True)
                seen += 1
    return seen


def _other_tokens(token: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield tokens that differ from `token` in every byte and in one, with descriptions of the files."""
    yield "of another token", OTHER
    for place, byte in enumerate(token):
        changed = bytes([*token[:place], byte ^ 0xFF, *token[place + 1 :]])
        yield f"of a token that differs in byte {place} alone", changed


def _saved(trial: Trial) -> Iterator[tuple[Call, Model, Cache]]:
    """Yield the samples, each with empty files for it. NotAccepted if the driver has no compilation cache."""
    trial.calls.fixed()
    yield from _each_saved(trial, _samples(trial))


def _samples(trial: Trial) -> Iterator[tuple[Call, Model]]:
    """Yield the samples; NotAsked without any is raised after the errors of `_each_saved`."""
    yield from trial.calls.samples()


def _each_saved(trial: Trial, calls: Iterable[tuple[Call, Model]]) -> Iterator[tuple[Call, Model, Cache]]:
    """Yield calls, each with empty files for it; raise as `_saved`."""
    with trial.stages.enter("number_of_cache_files"):
        count = cache_files_by(trial.device)
    if not count:
        raise NotAccepted("the driver has no compilation cache: number_of_cache_files() returns 0, 0")
    for call, model in calls:
        with empty_files(count) as cache:
            yield call, model, cache
        trial.end()


def _restored_now(trial: Trial, model: Model, cache: Cache) -> Prepared:
    """Restore from files that the driver has just saved; raise RequirementNotMet if they are a miss."""
    try:
        return _restored(trial, model, cache)
    except NnhalError as error:
        refusal = read_refusal(cache.files[0])
        trial.unmet(f"nothing is saved: {refusal}" if refusal else f"files that it has just saved are a miss: {error}")


def _restored(trial: Trial, model: Model, cache: Cache) -> Prepared:
    with trial.stages.enter("prepare_from_cache"):
        return trial.opened(restored_from(trial.device, model, replace(PLAIN, cache=cache)))


def _computes(trial: Trial, call: Call, model: Model, prepared: Prepared, what: str) -> None:
    for each, arrays, wanted in data_sets(trial, call, model, 3):
        trial.same(each, wanted, trial.run(prepared, copies(arrays)), what)


def _missed(trial: Trial, call: Call, model: Model, cache: Cache, what: str, *, at_all: bool = False) -> bool:
    """Return whether files are a miss; raise RequirementNotMet if they do harm.

    at_all: already if they are accepted, whatever they compute.
    """
    try:
        prepared = _restored(trial, model, cache)
    except MissedDeadline as error:
        trial.unmet(f"files {what}: {error}")
    except NnhalError:
        return True
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
    return False


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
        bit = int(trial.calls.rng.integers(8 * len(data)))
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        yield f"with bit {bit % 8} of byte {bit // 8} flipped", bytes(broken)


def _fill(fd: int, data: bytes) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, data, 0)

"""Cache files: restored in another process, swapped between kinds and models, changed while they are read or written."""

import os
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from nnhal.base.errors import DeadObject, InvalidArgument, NnhalError
from nnhal.base.records import replace
from nnhal.conformance.cache_files import OTHER, TOKEN, empty_files, restored_from
from nnhal.conformance.differential import Outputs, arrays_of
from nnhal.conformance.draw import Call
from nnhal.conformance.suites.vts.elsewhere import Saved, elsewhere
from nnhal.conformance.suites.vts.promise import COMMON, DRIVER, Look, Probe, named, promise
from nnhal.conformance.validate.trial import PLAIN, NotAccepted, NotAsked, RequirementNotMet, copies, open_trial
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import Cache, CacheFiles
from nnhal.hal.chain import checked_prepared
from nnhal.hal.device import Prepared
from nnhal.model.graph import Model
from nnhal.ops import OPS

GROUPS = 6  # of operations that one fresh process restores
SWAPS = 12  # restorations while another thread changes the files
NAMES = list(OPS)
SAVED = "saved"  # the list of operations with compilations that the driver saves


class _KeptFiles:
    """A compilation in cache files: the call, its results, and the bytes of each file."""

    def __init__(self, probe: Probe, call: Call, model: Model, cache: Cache) -> None:
        self.probe, self.call, self.model, self.cache = probe, call, model, cache
        probe.tries(call)
        self.wanted: Outputs = probe.alone(model, arrays_of(call))
        probe.close(probe.prepare(model, replace(PLAIN, cache=cache)))
        self.data = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in cache.files]

    @property
    def saved(self) -> bool:
        """Whether the driver has saved it."""
        return any(self.data)

    def write(self, data: Sequence[bytes]) -> None:
        """Write these bytes to its files."""
        for fd, each in zip(self.cache.files, data, strict=True):
            os.ftruncate(fd, 0)
            os.pwrite(fd, each, 0)

    def restored(self, cache: Cache) -> Prepared:
        """Restore from files, which are read from their beginning."""
        with self.probe.stages.enter("prepare_from_cache"):
            return self.probe.opened(restored_from(self.probe.device, self.model, replace(PLAIN, cache=cache)))

    def missed_or_right(self, what: str, cache: Cache | None = None, *, may_restore: bool = True) -> bool:
        """Return whether files were restored; raise RequirementNotMet if that is wrong, or its results are."""
        try:
            prepared = self.restored(cache or self.cache)
        except NnhalError:
            return False
        if not may_restore:
            raise RequirementNotMet(f"files {what} are accepted, must be a miss")
        results = self.probe.run(prepared, copies(arrays_of(self.call)))
        problem = self.probe.differs(self.call, self.wanted, results)
        if problem:
            raise RequirementNotMet(f"files {what} are accepted, and change results: {problem}")
        self.probe.close(prepared)
        return True


def _counted(probe: Probe) -> CacheFiles:
    """Return the driver's number of files; NotAccepted if it has no compilation cache."""
    with probe.stages.enter("number_of_cache_files"):
        count = cache_files_by(probe.device)
    if not count:
        raise NotAccepted("the driver has no compilation cache: number_of_cache_files() returns 0, 0")
    return count


@contextmanager
def _kept(probe: Probe, count: CacheFiles, token: bytes = TOKEN, *, but: str = "") -> Iterator[_KeptFiles]:
    """Save a compilation of the first operation whose compilations the driver saves, except for one operation."""
    known = probe.lists.setdefault(SAVED, [])
    for name in dict.fromkeys((*known, *COMMON)):
        if name == but:
            continue
        other = probe.of(name)
        with open_trial(other):
            try:
                call, model = other.closed()
            except NotAsked:
                continue
            with empty_files(count, token) as cache:
                kept = _KeptFiles(other, call, model, cache)
                if kept.saved:
                    known += [name] * (name not in known)
                    yield kept
                    return
    raise NotAsked("the driver saves none of the supported calls")


# ------------------------------------------------------------------------------------------------------- other processes


def _group(number: int) -> Look:
    """Return a look at every sixth operation: saved here, restored in one fresh process."""

    def look(probe: Probe) -> int:
        count = _counted(probe)
        with ExitStack() as held:
            kept: list[_KeptFiles] = []
            for name in NAMES[number::GROUPS]:
                other = probe.of(name)
                held.enter_context(open_trial(other))
                try:
                    call, model = other.closed()
                except NotAsked:
                    continue
                each = _KeptFiles(other, call, model, held.enter_context(empty_files(count)))
                if each.saved:
                    kept.append(each)
            tasks: list[Saved] = [
                (k.model, k.cache.token, k.cache.model_files, k.cache.data_files, copies(arrays_of(k.call)))
                for k in kept
            ]
            for k in kept:
                for fd in k.cache.files:
                    os.lseek(fd, 0, os.SEEK_SET)
            if not tasks:
                return 0
            fds = [fd for k in kept for fd in k.cache.files]
            try:
                answers = elsewhere(probe.suite_run, "restored", tasks, fds=fds)
            except DeadObject as error:
                raise RequirementNotMet(f"restoring in a fresh process: {error}") from error
            for k, answer in zip(kept, answers, strict=True):
                k.probe.tries(k.call)
                where = f"{k.probe.operation}, saved here and restored in a fresh process"
                if isinstance(answer, str):
                    raise RequirementNotMet(f"{where}: {answer}, must be restored")
                problem = k.probe.differs(k.call, k.wanted, answer)
                if problem:
                    raise RequirementNotMet(f"{where}: {problem}")
            return len(kept)

    return look


for _number in range(GROUPS):
    promise(
        f"files/elsewhere-{_number + 1}-of-{GROUPS}",
        "A compilation that one process saves is restored by another, and computes the same.",
        DRIVER,
        unseen="the driver saves none of the supported calls",
    )(_group(_number))


# ----------------------------------------------------------------------------------------------------------- wrong files


@promise("files/swapped", "Files of another model, kind or place are a miss, or change no result.", DRIVER)
def swapped(probe: Probe) -> int:
    count = _counted(probe)
    seen = 0
    with _kept(probe, count) as one, _kept(probe, count, OTHER, but=one.probe.operation) as other:
        own = one.data
        for place, (mine, theirs) in enumerate(zip(own, other.data, strict=True)):
            if mine != theirs:
                one.write([*own[:place], theirs, *own[place + 1 :]])
                one.missed_or_right(f"with file {place} of another compilation", may_restore=False)
                seen += 1
        one.write(other.data)
        one.missed_or_right("of another compilation and token", may_restore=False)
        if len(own) > 1:
            one.write(own[::-1])
            one.missed_or_right("in another order")
        one.write(own)
        if count.model and count.data:
            kinds = Cache(one.cache.token, one.cache.data_files, one.cache.model_files)
            one.missed_or_right("with exchanged kinds", kinds)
        if not one.missed_or_right("as they were saved"):
            raise RequirementNotMet("files that hold again what was saved are a miss, must be restored")
    return seen + 2


@promise("files/number", "Another number of files than the driver's, or a token of another size, is a miss.", DRIVER)
def number(probe: Probe) -> int:
    count = _counted(probe)
    with _kept(probe, count) as kept, tempfile.TemporaryFile(buffering=0) as extra:
        cache = kept.cache
        for what, wrong in {
            "without the last one": _less(cache),
            "without any": Cache(cache.token),
            "with a model file too many": Cache(cache.token, (*cache.model_files, extra.fileno()), cache.data_files),
            "with a data file too many": Cache(cache.token, cache.model_files, (*cache.data_files, extra.fileno())),
            "with a token of 31 bytes": Cache(cache.token[:-1], cache.model_files, cache.data_files),
            "with an empty token": Cache(b"", cache.model_files, cache.data_files),
        }.items():
            kept.missed_or_right(what, wrong, may_restore=False)
        if not kept.missed_or_right("as they were saved"):
            raise RequirementNotMet("files that were refused with others are a miss afterwards, must be restored")
    return 6


def _less(cache: Cache) -> Cache:
    if cache.data_files:
        return Cache(cache.token, cache.model_files, cache.data_files[:-1])
    return Cache(cache.token, cache.model_files[:-1])


@promise(
    "files/unsuitable",
    "Files that cannot be read or written are InvalidArgument, or cost the cache entry only.",
    DRIVER,
)
def unsuitable(probe: Probe) -> int:
    count = _counted(probe)
    with _kept(probe, count) as kept, ExitStack() as held:
        read, write = os.pipe()
        held.callback(os.close, read)
        held.callback(os.close, write)
        bad = {
            "a directory": os.open("/", os.O_RDONLY | os.O_DIRECTORY),
            "/dev/null": os.open("/dev/null", os.O_RDWR),
            "/dev/full": os.open("/dev/full", os.O_RDWR),
            "a file for reading only": os.open("/proc/self/status", os.O_RDONLY),
        }
        for fd in bad.values():
            held.callback(os.close, fd)
        bad |= {"the read end of a pipe": read, "the write end of a pipe": write}
        for what, fd in bad.items():
            fds = (fd,) * sum(count)
            cache = Cache(OTHER, fds[: count.model], fds[count.model :])
            text = f"that are {what}"
            try:
                prepared = kept.probe.opened(_prepared(kept, cache))
            except InvalidArgument:  # the caller's mistake
                continue
            except NnhalError as error:
                raise RequirementNotMet(
                    f"prepare() with files {text}: {named(error)}, must prepare the model uncached"
                ) from error
            kept.probe.right(kept.call, kept.wanted, prepared, f"prepared with files {text}")
            if _may_seek(fd):
                kept.missed_or_right(text, cache, may_restore=False)
    return len(bad)


def _prepared(kept: _KeptFiles, cache: Cache) -> Prepared:
    with kept.probe.stages.enter("prepare"):
        return checked_prepared(kept.probe.device, kept.model, replace(PLAIN, cache=cache))


def _may_seek(fd: int) -> bool:
    try:
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------ changed meanwhile


@contextmanager
def _changing(kept: _KeptFiles, versions: Sequence[Sequence[bytes]]) -> Iterator[None]:
    """Write versions of the files one after another, in another thread, until the context ends."""
    end = threading.Event()

    def change() -> None:
        while not end.is_set():
            for version in versions:
                kept.write(version)

    thread = threading.Thread(target=change, name="nnhal-vts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


@promise("files/read", "Files that change while they are read are a miss, or restore what was saved.", DRIVER)
def changed_while_read(probe: Probe) -> int:
    count = _counted(probe)
    with _kept(probe, count) as kept, _kept(probe, count, OTHER, but=kept.probe.operation) as other:
        broken = [bytes(b ^ 0x10 if n == len(each) // 2 else b for n, b in enumerate(each)) for each in kept.data]
        versions = [kept.data, other.data, kept.data, broken, [b"" for _ in kept.data]]
        with _changing(kept, versions):
            for _ in range(probe.count(SWAPS)):
                kept.missed_or_right("that change while they are read")
        kept.write(kept.data)
        if not kept.missed_or_right("as they were saved"):
            raise RequirementNotMet("files that hold again what was saved are a miss, must be restored")
    return probe.count(SWAPS)


@promise(
    "files/written", "Files that change while they are written cost the cache entry, and change no result.", DRIVER
)
def changed_while_written(probe: Probe) -> int:
    count = _counted(probe)
    with _kept(probe, count) as kept, _kept(probe, count, OTHER, but=kept.probe.operation) as other:
        for _ in range(probe.count(SWAPS)):
            with _changing(kept, [other.data, [b"" for _ in kept.data]]):
                prepared = kept.probe.opened(_prepared(kept, kept.cache))
            kept.probe.right(kept.call, kept.wanted, prepared, "prepared while its files change")
            kept.probe.close(prepared)
            kept.missed_or_right("that changed while they were written")
    return probe.count(SWAPS)

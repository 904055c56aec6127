"""Caching: by the model or an application's token; hits, misses, other tokens, and files that were changed."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import nnhal
from nnhal.conformance.suites.cts.area import AreaTrial, SampleModel, area
from nnhal.conformance.suites.cts.graphs import own_graph
from nnhal.conformance.suites.suite import CaseFailed, NotApplicable

TOKEN, OTHER = b"c" * 32, b"d" * 32
STATE = "NNHAL_STATE_DIR"
NO_ENTRY = "there is no entry"  # reasons of outcomes
FAILED = "the driver failed"


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder for a cache; drivers keep their records of it beside it."""
    before = os.environ.get(STATE)
    with tempfile.TemporaryDirectory(prefix="nnhal-cts-") as found:
        os.environ[STATE] = str(Path(found, "state"))
        try:
            yield Path(found, "cache")
        finally:
            if before is None:
                del os.environ[STATE]
            else:
                os.environ[STATE] = before


def _state(trial: AreaTrial, compiled: nnhal.Compiled) -> str:
    """Return the outcome of the only partition; NotApplicable if the device caches nothing."""
    outcomes = compiled.cache
    trial.require(len(outcomes) == 1, f"cache has {len(outcomes)} outcomes, must be 1: {outcomes}")
    (outcome,) = outcomes
    if outcome.state == "off":
        trial.require(FAILED not in outcome.reason, f"cache: {outcome.reason}")
        raise NotApplicable(f"the device caches nothing: {outcome.reason}")
    return outcome.state


def _restored(compiled: nnhal.Compiled) -> bool:
    """Whether a second compilation is a hit; CaseFailed if there was an entry that the driver did not restore."""
    (outcome,) = compiled.cache
    if outcome.state == "miss" and not outcome.reason.startswith(NO_ENTRY):
        raise CaseFailed(f"second compilation is a {outcome}, must be a hit: no file was changed")
    return outcome.state == "hit"


def _again(trial: AreaTrial, sample: SampleModel, folder: Path, token: bytes | None, where: str) -> str:
    """Compile once more, check the results, and return the outcome. No file was changed since the last compilation."""
    compiled = trial.compile(sample.model, fallback="forbid", cache_dir=folder, token=token)
    state = _state(trial, compiled)
    _restored(compiled)
    sample.execute(f"{where} ({state})", lambda: compiled(*sample.arrays))
    compiled.close()
    return state


@area("cache/hit", "operation")
def hit(trial: AreaTrial) -> None:
    """The second compilation of a model is a hit; results are right each time, also of other inputs."""
    sample = trial.sample()
    with _folder() as folder:
        for token in (None, TOKEN):
            what = "without a token" if token is None else "with a token"
            first = _again(trial, sample, folder, token, f"first compilation {what}")
            trial.require(first == "miss", f"first compilation {what} is a {first}, must be a miss")
            second = _again(trial, sample, folder, token, f"second compilation {what}")
            if second == "miss":
                raise NotApplicable("the driver saves nothing of this model")
        compiled = trial.compile(sample.model, fallback="forbid", cache_dir=folder, token=TOKEN)
        other = sample.other()
        other.execute("restored, with other inputs", lambda: compiled(*other.arrays))
        sample.execute("restored, with the first inputs", lambda: compiled(*sample.arrays))
        trial.no_fallback(compiled)


@area("cache/other-token", "operation")
def other_token(trial: AreaTrial) -> None:
    """Another token is a miss, and another model under it has its own results."""
    sample = trial.sample(lambda call: call.constants > 0)
    call, model = trial.with_other_constants(sample.call)
    with _folder() as folder:
        _again(trial, sample, folder, TOKEN, "first token")
        if _again(trial, sample, folder, TOKEN, "first token, second compilation") != "hit":
            raise NotApplicable("the driver saves nothing of this model")
        try:
            compiled = trial.compile(model, fallback="forbid", cache_dir=folder, token=OTHER)
        except nnhal.UnsupportedModel as why:
            trial.idle()
            raise NotApplicable(str(why)) from why
        mine = SampleModel(trial, call, model, compiled)
        state = _state(trial, compiled)
        trial.require(state == "miss", f"compilation with another token is a {state}, must be a miss")
        mine.execute("other token", lambda: compiled(*mine.arrays))
        _again(trial, sample, folder, TOKEN, "first token again")
        _again(trial, mine, folder, OTHER, "other token again")
        _again(trial, mine, folder, None, "no token")


def _flip(data: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(data)
    for at in rng.integers(0, len(data), 8):
        changed[at] ^= 1 << int(rng.integers(8))
    return bytes(changed)


CHANGES: dict[str, Callable[[bytes, np.random.Generator], bytes]] = {
    "flipped": _flip,
    "truncated": lambda data, rng: data[: int(rng.integers(len(data)))],
    "extended": lambda data, rng: data + bytes(rng.integers(0, 256, 33).astype("u1")),
    "zeroed": lambda data, rng: bytes(len(data)),
    "random": lambda data, rng: bytes(rng.integers(0, 256, len(data)).astype("u1")),
    "empty": lambda data, rng: b"",
}


@area("cache/corrupted", "graph", 2, kinds=tuple(CHANGES))
def corrupted(trial: AreaTrial) -> None:
    """Changed files are a miss or harmless: the results are right, and a later compilation is cached again."""
    graph, _ = own_graph(trial, 6)
    with _folder() as folder:

        def compile_once(where: str) -> str:
            compiled = trial.compile(graph.model, fallback="forbid", cache_dir=folder, token=TOKEN)
            state = _state(trial, compiled)
            results = trial.execute(lambda: compiled(*graph.inputs()))
            graph.check(graph.inputs(), results, f"{where} ({state})")
            compiled.close()
            return state

        compile_once("first compilation")
        if compile_once("second compilation") != "hit":
            raise NotApplicable("the driver saves nothing of this model")
        for path in sorted(folder.rglob("*")):
            if not path.is_file() or not path.stat().st_size:
                continue
            kept = path.read_bytes()
            path.write_bytes(CHANGES[trial.kind](kept, trial.rng))
            compile_once(f"{path.name} is {trial.kind}")
        compile_once("compilation afterwards")


@area("cache/removed", "graph", 2)
def removed(trial: AreaTrial) -> None:
    """Files that disappear are a miss, and the results are right; so are those of a read-only folder."""
    graph, _ = own_graph(trial, 6)
    with _folder() as folder:
        for n in range(3):
            compiled = trial.compile(graph.model, fallback="forbid", cache_dir=folder)
            state = _state(trial, compiled)
            trial.require(state == "miss", f"compilation {n} in an emptied folder is a {state}, must be a miss")
            graph.check(graph.inputs(), trial.execute(lambda: compiled(*graph.inputs())), f"compilation {n}")  # noqa: B023
            compiled.close()
            for path in folder.rglob("*"):
                if path.is_file():
                    path.unlink()

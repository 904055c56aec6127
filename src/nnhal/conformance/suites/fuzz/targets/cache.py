"""Entries of the compilation cache with changes: a hit that computes the same, or a miss; never a wrong result."""

import random
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnhal import api
from nnhal.base.errors import UnsupportedModel
from nnhal.base.operands import Array
from nnhal.conformance.suites.fuzz.inputs import Choices, changed, damaged
from nnhal.conformance.suites.fuzz.target import FuzzTarget, WrongAnswer
from nnhal.conformance.suites.fuzz.targets.importers import options_of, tested
from nnhal.conformance.suites.suite import NotSupported, SuiteRun
from nnhal.model.graph import Model

HITS = "hit"
LAYERS = "FULLY_CONNECTED", "ADD", "MUL"  # the first that the device supports is compiled
SMALL = 64  # bytes
SIZE = 16
_X = np.ones((1, SIZE), np.float32)


class CacheTarget(FuzzTarget):
    """The choices of one or two changes: of a file's bytes, length or presence, or of two files of two entries."""

    name = "cache"
    guided = "nnhal.runtime.cache", "nnhal.hal.cache"

    def __init__(self, run: SuiteRun) -> None:
        self._device = tested(run)
        self._how = options_of(run, self._device)
        self._home = tempfile.TemporaryDirectory(prefix="nnhal-fuzz-")
        self._folder = Path(self._home.name, "cache")
        self._models = self._supported()
        self._wanted = [self._ran(model)[1] for model in self._models]
        one, other = self._wanted
        if np.array_equal(one, other):
            raise NotSupported("the two models that the target compiles compute the same")
        self._files = {path.relative_to(self._folder): path.read_bytes() for path in self._paths()}
        if self._ran(self._models[0])[0] != HITS:
            raise NotSupported(f"device {self._device}: its compilations are not cached")

    def seeds(self) -> Sequence[bytes]:
        """Return random choices."""
        rng = random.Random(0)
        return [rng.randbytes(64) for _ in range(16)]

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Change bytes, or draw other ones."""
        return rng.randbytes(64) if rng.random() < 0.5 else changed(rng, data, other)

    def run(self, data: bytes) -> str:
        """Restore from changed files, and compare."""
        choices = Choices(data)
        files = dict(self._files)
        for _ in range(choices.randint(1, 2)):
            _change(choices, files)
        shutil.rmtree(self._folder)
        self._folder.mkdir(mode=0o700)
        for path, content in files.items():
            place = self._folder / path
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o600)
        number = choices.randrange(2)
        state, result = self._ran(self._models[number])
        if not np.array_equal(result, self._wanted[number]):
            kinds = {path.suffix for path in self._files if files.get(path) != self._files[path]}
            raise WrongAnswer(f"a {state} with changed files ({', '.join(sorted(kinds))}) gives a wrong result")
        return state

    def _supported(self) -> list[Model]:
        """Return two models of the first layer that the device supports; NotSupported if it rejects all of them."""
        reason = ""
        for layer in LAYERS:
            models = [_model(layer, number) for number in (1, 2)]
            try:
                for model in models:
                    self._ran(model)
            except UnsupportedModel as error:
                reason = reason or str(error)
            else:
                return models
        raise NotSupported(f"the device rejects {', '.join(LAYERS)} of float32 with constants: {reason}")

    def _paths(self) -> list[Path]:
        return sorted(path for path in self._folder.rglob("*") if path.is_file())

    def _ran(self, model: Model) -> tuple[str, Array]:
        """Compile with the cache, and execute; return whether the entry was used, and the result."""
        with api.compile(
            model, devices=[self._device], cache_dir=self._folder, fallback="forbid", **self._how
        ) as compiled:
            state = compiled.cache[-1].state if compiled.cache else "none"
            return state, np.array(compiled(_X))

    def close(self) -> None:
        """Delete the files."""
        self._home.cleanup()


def _model(layer: str, number: int) -> Model:
    """Return a layer whose result shows a change of any weight."""
    from nnhal.frontends.python import Builder

    b = Builder(f"m{number}")
    x = b.input((1, SIZE))
    weights = number * np.arange(1, SIZE * SIZE + 1, dtype=np.float32).reshape(SIZE, SIZE)
    if layer == "FULLY_CONNECTED":
        y = b.fully_connected(x, b.constant(weights), np.zeros(SIZE, np.float32))
    else:
        y = b.operation(layer, x, b.constant(weights[:1]))
    return b.finish([x], [y])


def _change(choices: Choices, files: dict[Path, bytes]) -> None:
    """Change one file, or two."""
    if not files:
        return
    kind, names = choices.randrange(8), sorted(files)
    large = [name for name in names if len(files[name]) > SMALL]  # the entries, not the counts of their uses
    names = large if large and choices.random() < 0.7 else names
    one, other = choices.choice(names), choices.choice(names)
    content = files[one]
    if kind < 4:
        files[one] = damaged(choices, content, files[other])
    elif kind == 4:
        files[one] = content[: choices.randrange(len(content) + 1)]
    elif kind == 5:
        files[one], files[other] = files[other], content
    elif kind == 6:
        del files[one]
    else:
        files[one] = content + choices.randbytes(16)

"""The drawn calls of an operation, with the answers of the driver about them."""

import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np

from nnhal.conformance.control import CONTROL, Source, Takes, sources
from nnhal.conformance.differential import OPEN, model_of
from nnhal.conformance.draw import Call, Cell, cells, draw
from nnhal.hal.device import Prepared
from nnhal.model.graph import Model

MORE = 3  # times as many supported calls, for checks of values
RECENT = 3  # operations whose drawn calls stay in memory


class Drawing:
    """The drawn calls of one operation, with the driver's verdict of each; the same for the same seed.

    drawing: is called before each call is drawn.
    """

    def __init__(self, operation: str, seed: int, draws: int, drawing: Callable[[], object] = lambda: None) -> None:
        self.operation, self._drawing = operation, drawing
        self.calls: list[tuple[Call, Model]] = []
        self._sources: list[Source] = []  # of each call
        self._seed, self._draws = [seed, zlib.crc32(operation.encode())], draws
        self._rng = np.random.default_rng(self._seed)
        several = list(cells([operation]))
        self._draw([partial(_plain, cell) for cell in several])
        with_scalars = [cell for cell in several if any(argument.scalar for argument in cell.op.forms[cell.form])]
        self._draw([partial(draw, cell, late=True) for cell in with_scalars if cell.values == "ordinary"])
        self.taken: list[tuple[Call, Model]] | None = None
        self.refused: list[tuple[int, str]] = []  # the type and reason of each rejected call
        self.samples: list[tuple[Call, Model]] | None = None
        self.kept: list[tuple[int | None, Prepared]] = []  # with the type under test; a later check closes them

    def _draw(self, sources: Sequence[Source]) -> None:
        for source in sources:
            for _ in range(self._draws):
                self._drawing()
                call = source(self._rng)
                if call is not None:
                    self.calls.append((call, model_of(call)))
                    self._sources.append(source)

    def begin(self, takes: Takes) -> None:
        """Draw calls that depend on other verdicts: control flow contains operations that the driver supports alone."""
        if self.operation in CONTROL:
            self.calls, self._sources = [], []
            self._draw(sources(self.operation, self._rng, takes))

    def more(self, calls: Sequence[tuple[Call, Model]]) -> Iterator[tuple[Call, Model]]:
        """Yield further calls of the kinds that these drawn calls have; the same ones each time."""
        rng = np.random.default_rng([*self._seed, MORE])
        like = {id(call) for call, _ in calls}
        pairs = zip(self._sources, self.calls, strict=True)
        for source in dict.fromkeys(source for source, (call, _) in pairs if id(call) in like):
            for _ in range(MORE * self._draws):
                self._drawing()
                call = source(rng)
                if call is not None:
                    yield call, model_of(call)


class RecentDrawings:
    """The drawn calls of the operations that were asked for last; those of others are drawn again."""

    def __init__(self) -> None:
        self._drawings: OrderedDict[tuple[str, int], Drawing] = OrderedDict()

    def of(self, operation: str, seed: int, draws: int, drawing: Callable[[], object]) -> Drawing:
        """Return an operation's calls. draws, drawing: as of `Drawing`, if they are drawn now."""
        key = operation, seed
        found = self._drawings.pop(key, None) or Drawing(operation, seed, draws, drawing)
        self._drawings[key] = found
        if len(self._drawings) > RECENT:
            self._drawings.popitem(last=False)
        return found


def _plain(cell: Cell, rng: np.random.Generator) -> Call:
    """Draw a call; some have dimensions that the model leaves open."""
    return draw(cell, rng, open=bool(rng.random() < OPEN))

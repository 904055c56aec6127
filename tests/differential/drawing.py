"""How much is drawn, and of which seeds: NNHAL_DRAWS calls of each cell, of seed NNHAL_SEED.

`./check` draws two, `./check --nightly` 500.
"""

import os

from nnhal.conformance.draw import Cell

DRAWS = int(os.environ.get("NNHAL_DRAWS", "2"))
WHOLE = DRAWS >= 8  # a run that leaves nothing out
SEED = int(os.environ.get("NNHAL_SEED", "1"))


def seeds(cell: Cell) -> list[int]:
    """A seed for each cell: what is drawn of one does not hang on the others."""
    return [SEED, *str(cell).encode()]

"""How hypothesis is used: the same examples every time, none of them timed."""

from hypothesis import Phase, settings

STABLE = settings(
    max_examples=200, derandomize=True, database=None, deadline=None, phases=(Phase.generate, Phase.shrink)
)

"""Which cases of a test marked `sampled(n)` run: one in n, chosen by a hash of their names. `--whole` runs all.

The check runs a share of the large matrices, always the same one. `./check --nightly` runs them whole. A case that is
named on the command line runs.
"""

import hashlib
from collections import defaultdict

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--whole`."""
    parser.addoption("--whole", action="store_true", help="run all cases of tests that are marked sampled")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the cases that are not in the sample."""
    if config.option.whole:
        return
    functions: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled"):
            functions[item.nodeid.partition("[")[0]].append(item)
    left_out = {id(item) for cases in functions.values() for item in sorted(cases, key=_place)[_share(cases) :]}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
        items[:] = [item for item in items if id(item) not in left_out]


def _place(item: pytest.Item) -> bytes:
    return hashlib.sha256(item.nodeid.encode()).digest()


def _share(cases: list[pytest.Item]) -> int:
    marker = cases[0].get_closest_marker("sampled")
    assert marker is not None
    return -(-len(cases) // marker.args[0])  # at least one

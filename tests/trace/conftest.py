"""Drivers' processes that other tests left have no part in traces."""

import pytest

from nnhal.runtime import isolation


@pytest.fixture(autouse=True, scope="module")
def _alone() -> None:
    isolation.close_all()

"""Gives each test of an importer its own random numbers, whichever tests ran before it."""

import pytest

from tests.frontends.cases import begin


@pytest.fixture(autouse=True)
def own_numbers(request: pytest.FixtureRequest) -> None:
    """The cases that the test draws do not depend on those of others."""
    begin(request.node.nodeid)

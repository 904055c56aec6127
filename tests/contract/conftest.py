"""Fixtures of the tests of the driver contract."""

from collections.abc import Callable

import pytest


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> Callable[[str], bool]:
    """Whether a driver has printed something, in this process or in one of its own."""
    printed = [""]
    caplog.set_level("INFO", "nnhal.driver")

    def has(words: str) -> bool:
        printed[0] += capsys.readouterr().out
        return words in printed[0] + caplog.text

    return has

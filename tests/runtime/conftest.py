"""Fixtures of the runtime's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal.runtime import discovery, isolation


@pytest.fixture
def new_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No device is registered and nothing was recorded, as when an application starts; its driver processes end."""
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setattr(discovery, "_registered", {})
    yield
    isolation.close_all()

"""A driver in a confined process gets nowhere: the table of tries in `escapes`, one by one, on the real thing."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from nnhal.base.errors import OperationFailed
from nnhal.ipc.client.device import RemoteDevice
from tests.ipc.escapes import ESCAPES, HARMLESS, Escape
from tests.ipc.support import own_process, prepare

CAPTIVE = str(Path(__file__).parent / "drivers" / "captive.py")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside."""
    return tmp_path_factory.mktemp("outside")


@pytest.fixture(scope="module")
def captive() -> Iterator[RemoteDevice]:
    """A driver's own process, confined as always."""
    with own_process(CAPTIVE) as device:
        assert all(text.startswith("applied: ") for text in device.confinement.values()), device.confinement
        yield device


def comes_of(device: RemoteDevice, escape: Escape, place: Path) -> str:
    (place / "own").write_text("text")
    (place / "other").write_text("text")
    with pytest.raises(OperationFailed) as failure:
        prepare(device, **{"try": escape.how.format(place=place)})
    return str(failure.value).removeprefix("device captive: ").rpartition(": ")[2]


@pytest.mark.parametrize("escape", ESCAPES, ids=lambda e: e.what)
def test_what_a_hostile_driver_tries_is_refused_or_no_way_out(
    escape: Escape, captive: RemoteDevice, place: Path
) -> None:
    assert comes_of(captive, escape, place) == escape.answer
    assert {x.name: x.read_text() for x in place.iterdir()} == {"own": "text", "other": "text"}
    assert escape.answer.startswith("done") == bool(escape.harmless)


def test_it_is_confinement_that_refuses(place: Path) -> None:
    """What anybody may do unconfined is done there, or refused otherwise."""
    with own_process(CAPTIVE, options=["--unconfined"]) as device:
        tries = [escape for escape in ESCAPES if escape.control and escape not in HARMLESS]
        assert len(tries) > 60
        alike = [escape.what for escape in tries if comes_of(device, escape, place) == escape.answer]
    assert not alike


def test_the_table_names_every_try_once() -> None:
    assert len({escape.how for escape in ESCAPES}) == len(ESCAPES) > 120

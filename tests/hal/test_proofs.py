"""What was proved is found again by the same driver, engine and processor alone, whole or not at all."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnhal.base.errors import ContractBroken, OperationFailed
from nnhal.drivers.reference import Reference
from nnhal.hal import proofs
from nnhal.hal.cache import keeper
from nnhal.hal.choices import Proofs, Proved, VariantChoice
from nnhal.hal.device import Device
from nnhal.hal.proofs import choices_of, identity_here, store_proofs, verified_variants
from nnhal.hal.wrappers import WithOptions

pytestmark = pytest.mark.usefixtures("state")

ME = identity_here(Reference(), "1")
FOUND = {("ADD", 5): Proved("int8"), ("MUL", 5): Proved(None, "it is off by 3 steps"), ("SUB", 3): Proved("", "")}
IMPORTS = "from nnhal.drivers.reference import Reference; from nnhal.hal.proofs import verified_variants"


def recorded() -> dict[tuple[str, int], Proved]:
    """The record of `ME`."""
    return verified_variants(Reference(), "1")


def test_nothing_is_proved_where_there_is_no_record_and_asking_makes_none(state: Path) -> None:
    assert recorded() == {} and not state.exists()


def test_what_was_remembered_is_found_again_the_last_first() -> None:
    store_proofs(ME, {("ADD", 5): Proved("other")})
    store_proofs(ME, FOUND)
    assert recorded() == FOUND


def test_another_process_finds_it() -> None:
    store_proofs(ME, FOUND)
    program = f"{IMPORTS}; print(len(verified_variants(Reference(), '1')))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"3\n"


def test_the_record_is_this_users_alone(state: Path) -> None:
    store_proofs(ME, FOUND)
    assert (state / "proofs").stat().st_mode & 0o777 == 0o600 and state.stat().st_mode & 0o777 == 0o700
    (state / "proofs").chmod(0o644)
    assert recorded() == {}
    with pytest.raises(OperationFailed, match=r"must be this user's alone"):
        store_proofs(ME, FOUND)


class Other(Reference):
    name = "other"


@pytest.mark.parametrize("of", [(Reference(), "2"), (Other(), "1")])
def test_another_driver_or_version_has_no_proof(of: tuple[Device, str]) -> None:
    store_proofs(ME, FOUND)
    assert verified_variants(*of) == {}


def test_another_processor_has_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    store_proofs(ME, FOUND)
    without = keeper.features().replace(" avx2", "") + "\nstepping : 99"
    monkeypatch.setattr(keeper, "features", lambda: without)
    assert recorded() == {}


@pytest.mark.parametrize("wanted", ["vendor", "family", "model\t", "stepping", "flags"])
def test_the_processor_is_known_by_what_it_is_and_can(wanted: str) -> None:
    if "GenuineIntel" in keeper.features() or "AuthenticAMD" in keeper.features():
        assert wanted in keeper.features()


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


@pytest.mark.parametrize(
    "spoil",
    [
        flipped,
        lambda d: d[:-1],
        lambda d: d[:40],
        lambda d: d[:8] + bytes(32) + d[40:],
        lambda d: b"",
        lambda d: b"x" * 99,
    ],
    ids=["a bit", "cut off", "only its head", "of another key", "empty", "foreign"],
)
def test_a_damaged_or_foreign_record_is_no_proof(state: Path, spoil: Callable[[bytes], bytes]) -> None:
    store_proofs(ME, FOUND)
    path = state / "proofs"
    path.write_bytes(spoil(path.read_bytes()))
    assert recorded() == {}
    store_proofs(ME, FOUND)
    assert recorded() == FOUND


def test_a_record_half_written_hides_neither_what_was_before_nor_what_comes(state: Path) -> None:
    store_proofs(ME, {("ADD", 5): Proved("before")})
    before = (state / "proofs").read_bytes()
    store_proofs(ME, FOUND)
    half = (state / "proofs").read_bytes()[: len(before) + 70]
    (state / "proofs").write_bytes(half)
    assert recorded() == {("ADD", 5): Proved("before")}
    store_proofs(ME, FOUND)
    assert recorded() == FOUND


def test_a_value_of_another_form_is_no_proof() -> None:
    from nnhal.hal.blobcache import BlobCache, open_state_file

    for value in (b"[1]", b"nothing", b"[[1, 2]]", b"\xff", b"3"):
        BlobCache(open_state_file(proofs.FILE), ME).put(proofs.KEY, value)
        assert recorded() == {}


def test_many_processes_at_once_leave_a_record_that_is_one_of_theirs() -> None:
    program = (
        "import sys; from nnhal.hal.proofs import *; from nnhal.hal.choices import Proved\n"
        f"for n in range(40): store_proofs({ME!r}, {{('ADD', k): Proved(sys.argv[1] * 50) for k in range(30)}})"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, who]) for who in "abc"]
    seen = set()
    while any(each.poll() is None for each in started):
        found = recorded()
        assert len(set(found.values())) <= 1 and len(found) in (0, 30)
        seen |= {proved.form for proved in found.values()}
    assert [each.wait() for each in started] == [0, 0, 0]
    assert seen <= {who * 50 for who in "abc"} and recorded()


def test_of_processes_that_prove_other_operations_at_once_all_findings_stay() -> None:
    program = (
        "import sys; from nnhal.hal.proofs import *; from nnhal.hal.choices import Proved\n"
        f"for n in range(30): store_proofs({ME!r}, {{(sys.argv[1], n): Proved('')}})"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, who]) for who in "abc"]
    assert [each.wait() for each in started] == [0, 0, 0]
    assert recorded() == {(who, n): Proved("") for who in "abc" for n in range(30)}


def test_a_process_that_will_be_confined_reads_ahead_and_writes_nothing() -> None:
    store_proofs(ME, FOUND)
    program = (
        f"import os; {IMPORTS}; from nnhal.hal import proofs; from nnhal.hal.blobcache import BlobCache\n"
        "proofs.open_proofs(); os.environ['NNHAL_STATE_DIR'] = '/proc/nowhere'\n"
        f"print(len(verified_variants(Reference(), '1')), BlobCache(proofs._only[0], {ME!r}).put(proofs.KEY, b'[]'))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"3 False\n"
    assert recorded() == FOUND


def test_a_folder_that_cannot_be_had_is_no_proof_and_says_so_when_it_is_to_be_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NNHAL_STATE_DIR", f"/proc/{os.getpid()}/nowhere")
    assert recorded() == {}
    with pytest.raises(OperationFailed, match="cannot record verification results"):
        store_proofs(ME, FOUND)


def test_what_cannot_be_read_for_a_device_that_is_being_made_is_none_of_its_proofs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def denied() -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(proofs, "_to_read", denied)
    assert verified_variants(Reference(), "1") == {}
    assert "device reference: cannot read verification results: Permission denied" in caplog.text


class Choosing(Proofs[Device]):
    @property
    def identity(self) -> bytes:
        return ME

    def __init__(self, given: list[VariantChoice]) -> None:
        self.given = given

    def choices(self) -> list[VariantChoice]:
        return self.given

    def with_variant(self, operation: str, type: int, form: str) -> Device:
        raise NotImplementedError


def test_a_wrapped_device_has_the_choices_of_the_device_itself() -> None:
    device, choice = Reference(), VariantChoice("ADD", 3, ("fast", "exact"), None, "exact")
    assert choices_of(device) == ()
    device.proofs = Choosing([choice])
    assert choices_of(WithOptions(device, {"a": 1})) == [choice]


@pytest.mark.parametrize(
    "given",
    [
        ["ADD"],
        {VariantChoice("ADD", 3, ("fast", "exact"), None, "exact")},
        [VariantChoice("ADD", 3, ("a",), None, "a")] * 4097,
    ],
    ids=["of another type", "in no order", "too many"],
)
def test_choices_that_are_none_are_the_drivers_fault(given: Any) -> None:
    device = Reference()
    device.proofs = Choosing(given)
    with pytest.raises(ContractBroken, match="must be at most 4096 VariantChoice"):
        choices_of(device)

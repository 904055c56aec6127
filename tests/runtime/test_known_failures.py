"""A failure of a device is recorded against its version and the model's operations; transient ones are not."""

from pathlib import Path
from typing import Any

import pytest

import nnhal
from nnhal.runtime import measured
from tests.runtime.measured_drivers import chain, driver, used, where


def test_what_fails_to_prepare_is_not_asked_again_until_its_version_changes(tmp_path: Path) -> None:
    fails = "raise RuntimeError('no such tile')"
    driver(tmp_path, "npu", on_prepare=fails)
    first = used("npu")
    assert where(first) == ["reference"] * 2 and "failed to prepare" in first.events[0]
    second = used("npu")
    assert where(second) == ["reference"] * 2 and not second.events
    why = second.choices[0].others["npu"]
    assert why.startswith("failed in preparation before: ") and "no such tile" in why
    driver(tmp_path, "npu", version="2")
    assert where(used("npu")) == ["npu"] * 2


def test_a_driver_under_development_is_asked_again_once_its_code_has_changed(tmp_path: Path) -> None:
    driver(tmp_path, "npu", on_prepare="raise RuntimeError('no')")
    assert where(used("npu")) == where(used("npu")) == ["reference"] * 2
    driver(tmp_path, "npu")
    assert where(used("npu")) == ["npu"] * 2


def test_what_fails_to_run_is_not_asked_again(tmp_path: Path) -> None:
    driver(tmp_path, "npu", on_run="raise RuntimeError('burnt')")
    first = used("npu")
    assert where(first) == ["npu"] * 2 and first.live.total
    second = used("npu")
    assert where(second) == ["reference"] * 2 and not second.live.total
    assert second.choices[0].others["npu"].startswith("failed in execution before: ")


def test_another_model_is_not_held_against_it(tmp_path: Path) -> None:
    driver(tmp_path, "npu", on_prepare="if len(model.main.operations) == 2: raise RuntimeError('no')")
    used("npu")
    assert where(used("npu", length=3)) == ["npu"] * 3


def test_where_nothing_may_take_over_it_is_asked_again(tmp_path: Path) -> None:
    driver(
        tmp_path, "npu", on_prepare="if not getattr(self, 'once', False): self.once = True; raise RuntimeError('no')"
    )
    with pytest.raises(nnhal.OperationFailed):
        nnhal.compile(chain(), devices="npu", cache_dir=False)
    nnhal.compile(chain(), devices="npu", cache_dir=False).close()


@pytest.mark.parametrize("error", ["MissedDeadline", "ResourceExhausted", "OutOfMemory", "DeviceUnavailable"])
def test_what_may_pass_is_not_kept(tmp_path: Path, error: str) -> None:
    driver(tmp_path, "npu", on_prepare=f"import nnhal; raise nnhal.{error}('later')")
    with pytest.raises(nnhal.NnhalError) if error == "MissedDeadline" else _as_it_is():
        used("npu")
    assert not measured.is_measured()


def _as_it_is() -> Any:
    from contextlib import nullcontext

    return nullcontext()


def test_a_device_that_an_application_made_leaves_no_trace() -> None:
    from tests.runtime.devices import Fake, failing

    for _ in range(2):
        fake = Fake(on_prepare=failing(nnhal.OperationFailed("no")))
        compiled = nnhal.compile(chain(), devices=[fake], fallback="allow", cache_dir=False)
        assert "failed to prepare" in compiled.placement.events[0]
    assert not measured.is_measured()

"""What `nnhal test cache` says of compilations that a driver keeps."""

import os
from collections import Counter

import pytest

from nnhal.base.errors import InvalidArgument
from nnhal.conformance.differential import model_of
from nnhal.conformance.validate.check import CHECKS
from nnhal.conformance.validate.run import Validation, run_checks
from nnhal.conformance.validate.trial import open_trial
from nnhal.conformance.validate.worker import outcome_of
from nnhal.hal.cache.files import CacheFiles
from tests.conformance.test_checks import looked, trial_of
from tests.conformance.test_differential import added
from tests.conformance.test_validate import ADD, Healthy, HealthyDevice
from tests.conformance.test_validate import device as healthy
from tests.suites.faulty.application import DRIVER

pytestmark = pytest.mark.cache

FAMILY = {"cache-files", "cache-saved", "cache-restored", "cache-damaged", "cache-token", "cache-interleaved"}


def found(device: str, *only: str) -> dict[str, str]:
    chosen = Validation(device=device, only=only, draws=1)
    outcomes = [outcome for result, _, _ in run_checks(chosen, 1) for outcome in result.outcomes]
    return {outcome.check: outcome.verdict for outcome in outcomes if outcome.check.startswith("cache")}


def test_one_word_names_all_checks_of_what_is_kept():
    assert {check for check, _ in Validation(only=("cache/add",)).wanted} == FAMILY
    assert Validation(only=("cache-token/ADD",)).wanted == [("cache-token", "ADD")]
    with pytest.raises(InvalidArgument, match="check 'cach' is unknown"):
        Validation(only=("cach/ADD",))


@pytest.mark.parametrize("device", ["sample-full-1.3", "litert"])
def test_drivers_that_keep_compilations_pass(device):
    assert found(device, "cache/ADD", "cache-files") == dict.fromkeys(FAMILY, "passed")


def test_a_driver_that_keeps_none_is_not_looked_at_and_nothing_is_skipped():
    assert Counter(found("reference", "/ADD").values()) == {"unsupported": 1}


@pytest.mark.parametrize("name", sorted(FAMILY - {"cache-files"}))
def test_each_check_of_what_is_kept_says_that_nothing_is(name):
    said = "the driver has no compilation cache: number_of_cache_files() returns 0, 0"
    assert looked(healthy(), name, ADD) == ("unsupported", said, "")


@pytest.mark.parametrize("name", sorted(FAMILY - {"cache-files"}))
def test_a_driver_that_has_files_and_saves_nothing_gives_no_evidence(name):
    saves_nothing = healthy(number_of_cache_files=lambda self: CacheFiles(1, 1))
    assert looked(saves_nothing, name, ADD) == ("skipped", "the driver saves none of the supported calls", "")


class Unsaved(Healthy):
    def save(self, files):
        raise OSError("flash full")


class FullDevice(HealthyDevice):
    prepared = Unsaved

    def number_of_cache_files(self):
        return CacheFiles(1, 0)


@pytest.mark.parametrize("name", ["cache-restored", "cache-interleaved", "cache-damaged"])
def test_a_verdict_names_the_error_of_a_save_that_failed(name):
    found = looked(FullDevice(), name, ADD)
    assert found[:2] == ("failed", "nothing is saved: save() raised OSError: flash full")


def test_damaged_files_may_be_taken_where_results_stay_right_and_those_of_another_token_may_not():
    models = []

    def prepare(self, model, hints):
        models.append(model)
        for fd in hints.cache.files if hints.cache else ():
            os.pwrite(fd, b"kept", 0)
        return Healthy(model, self)

    trusting = healthy(
        prepare=prepare,
        prepare_from_cache=lambda self, outline, hints: Healthy(models[-1], self),
        number_of_cache_files=lambda self: CacheFiles(1, 0),
    )
    for name, became in (
        ("cache-damaged", ("passed", "")),
        ("cache-token", ("failed", "files of another token are accepted, must be a miss")),
    ):
        with open_trial(trial_of(trusting)) as trial:
            call = added([[1, 2]], [[3, 4]])
            trial.calls.drawing.samples = [(call, model_of(call))]
            assert outcome_of(CHECKS[name], trial)[:2] == became


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("fault", "check", "verdict"),
    [
        ("cache-save-spoils", "cache-saved", "failed"),
        ("cache-restores-nothing", "cache-restored", "failed"),
        ("cache-loses-relu1", "cache-restored", "failed"),
        ("cache-sorts-pools", "cache-restored", "failed"),
        ("cache-shares-scratch", "cache-interleaved", "failed"),
        ("cache-restores-last", "cache-interleaved", "failed"),
        ("cache-trusts", "cache-damaged", "failed"),
        ("cache-any-token", "cache-token", "failed"),
        ("cache-half-token", "cache-token", "failed"),
        ("cache-damage-ends", "cache-damaged", "crashed"),
    ],
)
def test_a_driver_that_lies_about_what_it_keeps_is_caught_by_name(monkeypatch, fault, check, verdict):
    monkeypatch.setenv("NNHAL_FAULT", fault)
    chosen = Validation(drivers=(str(DRIVER),), only=(f"{check}/ADD",), draws=1)
    outcomes = [outcome for result, _, _ in run_checks(chosen, 1) for outcome in result.outcomes]
    assert [(o.check, o.verdict) for o in outcomes if o.operation] == [(check, verdict)]

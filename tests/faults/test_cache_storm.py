"""Many processes and one spoiler: right results and no failures, here and with drivers in processes of their own."""

import pytest

from tests.nightly.cache_storm import QUOTA, storm

pytestmark = pytest.mark.cache


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolate", [False, True], ids=["in process", "isolated"])
def test_a_cache_that_is_spoiled_meanwhile_changes_no_result_and_fails_nothing(isolate: bool) -> None:
    found = storm(2, 20 if isolate else 60, isolate=isolate)
    assert (found["wrong"], found["failed"]) == (0, 0) and found["right"] == 2 * (20 if isolate else 60)
    assert found["hits"] and found["misses"]
    assert found["most_bytes"] < (QUOTA << 20) * 3 // 2


@pytest.mark.nightly
def test_the_same_for_longer() -> None:
    found = storm(8, 1000, seed=2)
    assert (found["wrong"], found["failed"], found["right"]) == (0, 0, 8000)

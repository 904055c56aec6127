"""A short storm; the long one is a command of its own."""

import pytest

from tests.nightly.storm import storm


@pytest.mark.nightly
def test_in_a_storm_of_signals_answers_belong_to_their_questions_and_nothing_is_left():
    found = storm(10, seed=7)
    assert found["ok"], found
    assert min(found["right"].values()) > 0 and sum(found["blows"].values()) > 0, found

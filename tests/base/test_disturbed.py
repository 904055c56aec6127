"""How it is told that something else has the cores; see also the calibration's own tests."""

from pathlib import Path

import pytest

from nnhal.base import disturbed
from nnhal.base.disturbed import process_cpu_time, share, thread_cpu_time


def thread(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "schedstat").write_text(text)


def test_all_threads_count_but_those_that_ended(tmp_path: Path) -> None:
    thread(tmp_path, "1", "100 20 7\n")
    thread(tmp_path, "2", "50 30 7\n")
    (tmp_path / "3").mkdir()
    assert process_cpu_time(tmp_path) == (150, 50)


@pytest.mark.parametrize("text", ["", "0 0 0", "none"])
def test_a_kernel_that_does_not_count_says_nothing(tmp_path: Path, text: str) -> None:
    thread(tmp_path, "1", text)
    assert (
        process_cpu_time(tmp_path) is None
        and thread_cpu_time(tmp_path / "1") is None
        and process_cpu_time(tmp_path / "none") is None
    )


def test_the_share_is_that_of_waiting() -> None:
    assert share((100, 100), (400, 200)) == 0.25
    assert share((100, 100), (100, 100)) == 0.0
    assert share(None, (1, 1)) == share((1, 1), None) == 0.0


def test_the_probe_is_the_mean_over_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second look is that at the end of a thread."""
    looks = {True: (100, 0), False: (400, 100)}
    turns: dict[int, int] = {}

    def look() -> tuple[int, int]:
        import threading

        turn = turns[threading.get_ident()] = turns.get(threading.get_ident(), 0) + 1
        return looks[turn % 2 == 1]

    monkeypatch.setattr(disturbed, "usable_cores", lambda: 3)
    monkeypatch.setattr(disturbed, "thread_cpu_time", look)
    monkeypatch.setattr(disturbed, "PROBE", 0.0)
    assert disturbed.probed() == pytest.approx(0.25)

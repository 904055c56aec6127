"""What commands keep of their compilations, and where: the user's own folder unless something else is asked."""

import json
import os
import pwd
from pathlib import Path
from typing import Any

import pytest

import nnhal
from nnhal.cli import common
from nnhal.runtime.cache.wanted import CacheOutcome, user_folder
from tests.cli.test_run import called

pytestmark = pytest.mark.cache

RUN = "run", "add4", "--device", "sample-full-1.3", "--verbose"
HIT, MISS = "hit", "miss: there is no entry"
OFF = "off: nothing is to be kept"


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder, which is not there yet."""
    monkeypatch.setenv("NNHAL_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("NNHAL_CACHE_DIR", raising=False)
    return tmp_path / "home" / "nnhal" / "compiled"


def told(capsys: Any, *words: Any) -> str:
    """What the lines about the cache say after the device; of these there is one."""
    out, _ = called(capsys, *RUN, *words)
    (part,) = [part for part in out.split("\n\n") if part.startswith("cache")]
    return " ".join(part.split()).removeprefix("cache sample-full-1.3: ")


def entries(folder: Path) -> int:
    """How many of devices there are."""
    return sum('"place": "own"' not in file.read_text() for file in folder.glob("*.entry"))


def test_what_tests_compile_is_nowhere_in_the_users_home(monkeypatch):
    monkeypatch.undo()
    assert Path(pwd.getpwuid(os.getuid()).pw_dir) not in user_folder().parents
    assert "NNHAL_CACHE_DIR" not in os.environ


def test_the_second_run_begins_from_what_the_first_kept_in_the_users_own_folder(capsys, own):
    assert [told(capsys) for _ in range(3)] == [MISS, HIT, HIT]
    assert entries(own) == 1 and own.stat().st_mode & 0o777 == 0o700


def test_nnhal_cache_looks_at_the_folder_that_runs_use(capsys, own):
    told(capsys)
    found = json.loads(called(capsys, "cache", "list", "--json")[0])
    assert found["folder"] == str(own) and {entry["model"] for entry in found["entries"]} == {"add4"}


def test_python_has_no_folder_by_default(own):
    with nnhal.compile("add4", devices="sample-full-1.3") as compiled:
        assert [str(each) for each in compiled.cache] == ["off: no cache folder was given"]
    assert not own.exists()


def test_python_keeps_nothing_where_it_says_false(tmp_path, monkeypatch):
    monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / "variable"))
    with nnhal.compile("add4", devices="sample-full-1.3", cache_dir=False) as compiled:
        assert [str(each) for each in compiled.cache] == [OFF]
    assert not (tmp_path / "variable").exists()


def test_the_folder_of_the_option_is_before_that_of_the_variable_and_that_before_the_users_own(
    capsys, own, tmp_path, monkeypatch
):
    monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / "variable"))
    assert [told(capsys, "--cache-dir", tmp_path / "option") for _ in range(2)] == [MISS, HIT]
    assert not (tmp_path / "variable").exists()
    assert [told(capsys) for _ in range(2)] == [MISS, HIT]
    assert entries(tmp_path / "variable") == 1 and not own.exists()


@pytest.mark.parametrize("variable", [None, "variable"])
def test_no_cache_reads_and_keeps_nothing(capsys, own, tmp_path, monkeypatch, variable):
    if variable:
        monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / variable))
    assert told(capsys, "--no-cache") == OFF
    assert not own.exists() and not (tmp_path / "variable").exists()
    assert told(capsys) == MISS
    assert told(capsys, "--no-cache") == OFF


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_a_folder_and_none_are_not_asked_for_together(capsys, verb):
    _, said = called(capsys, verb, "add4", "--no-cache", "--cache-dir", "here", code=2)
    assert "--no-cache with --cache-dir: must be one of the two" in said


def test_what_became_of_each_step_is_told_in_json(capsys):
    def cached() -> list[dict[str, str]]:
        return list(json.loads(called(capsys, *RUN, "--json")[0])["cache"])

    assert cached() == [{"device": "sample-full-1.3", "state": "miss", "reason": "there is no entry"}]
    assert cached() == [{"device": "sample-full-1.3", "state": "hit", "reason": ""}]


def test_a_device_that_keeps_nothing_says_so(capsys, own):
    out, _ = called(capsys, "run", "add4", "--device", "sample-minimal", "--verbose")
    assert "cache  sample-minimal: off: the device keeps none\n" in out
    assert entries(own) == 0


def test_steps_with_the_same_outcome_are_one_line():
    outcomes = [
        *(CacheOutcome("a", "hit"), CacheOutcome("b", "hit"), CacheOutcome("a", "hit")),
        *(CacheOutcome("a", "miss", "why"), CacheOutcome("c", "off", "why")),
    ]
    assert list(common.cache_lines(outcomes)) == ["cache  a, b: hit", "cache  a: miss: why", "cache  c: off: why"]


# ---------------------------------------------------------------------------------------------- folders of which none is one


def link(own: Path) -> None:
    (own.parent / "elsewhere").mkdir(parents=True)
    own.symlink_to("elsewhere")


def shared(own: Path) -> None:
    own.mkdir(parents=True)
    own.chmod(0o755)


def file(own: Path) -> None:
    own.parent.mkdir(parents=True)
    own.write_text("")


def looping(own: Path) -> None:
    own.parent.parent.mkdir()
    own.parent.symlink_to(own.parent)


REFUSED = {
    link: "is a link or no folder, must be a folder",
    shared: "has mode 0755, must be this user's alone (chmod go-rwx)",
    file: "is a link or no folder, must be a folder",
    looping: "file exists",
}


@pytest.mark.parametrize("made", REFUSED)
def test_a_folder_that_cannot_be_used_is_told_and_fails_nothing(capsys, own, made):
    made(own)
    assert told(capsys) == f"off: the folder {own} {REFUSED[made]}"


@pytest.mark.skipif(os.getuid() == 0, reason="root writes everywhere")
def test_a_home_that_is_read_only_is_told_and_fails_nothing(capsys, own):
    own.parent.parent.mkdir(mode=0o500)
    assert told(capsys) == f"off: the folder {own} permission denied"


def test_a_home_that_takes_nothing_is_told_and_fails_nothing(capsys, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/self")
    assert told(capsys).startswith("off: the folder /proc/self/nnhal/compiled ")


def test_a_home_that_is_not_known_is_told_and_fails_nothing(capsys, caplog, monkeypatch, tmp_path):
    def lacking(_: int) -> Any:
        raise KeyError("no such user")

    for name in ("HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "NNHAL_STATE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lacking)
    monkeypatch.chdir(tmp_path)
    why = "the folder ~/.cache/nnhal/compiled is below a home folder that is not known"
    assert told(capsys) == f"off: {why}"
    assert why in called(capsys, "cache", "list", code=3)[1]
    assert told(capsys, "--cache-dir", tmp_path / "cache") == (
        f"{MISS}; the device did not keep it: no private record of what was cached:"
        " ~/.local/state is below a home folder that is not known"
    )
    assert (
        "no private record of what was cached: ~/.local/state is below a home folder that is not known" in caplog.text
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]


def test_a_folder_named_from_one_that_is_gone_is_told_and_fails_nothing(capsys, monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert told(capsys, "--cache-dir", "here") == "off: the folder here no such file or directory"


# ---------------------------------------------------------------------------------------------------------- the other verbs


def test_bench_compiles_anew_unless_a_folder_is_given_and_tells_then(capsys, own, tmp_path, monkeypatch):
    monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / "variable"))
    words = "bench", *RUN[1:], "--iterations", "2"
    assert "cache  " not in called(capsys, *words)[0]
    (cached,) = json.loads(called(capsys, *words, "--json")[0])["cache"]
    assert (cached["state"], cached["reason"]) == ("off", "nothing is to be kept")
    assert not own.exists() and not (tmp_path / "variable").exists()
    assert "cache  sample-full-1.3: hit\n" in called(capsys, *words, "--cache-dir", tmp_path / "option")[0]


@pytest.mark.parametrize(
    "words",
    [
        ("show", "add4", "--placement"),
        ("diff", "add4", "--device", "sample-full-1.3"),
        ("test", "contract", "-d", "sample-full-1.3", "--filter", "^values/ADD$", "--jobs", "1"),
    ],
)
def test_verbs_that_look_keep_nothing(capsys, own, tmp_path, monkeypatch, words):
    monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / "variable"))
    called(capsys, *words)
    assert not own.exists() and not (tmp_path / "variable").exists()

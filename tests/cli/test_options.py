"""`--option`, and `--isolate` on every verb that compiles."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from nnhal.cli.common import parse_options
from tests.execution import PROGRAM_LIMIT, run_nnhal

DRIVER = """\
from nnhal.base.errors import InvalidArgument
from nnhal.hal.device import Device, Prepared

class Run(Prepared):
    def run(self, request, control):
        request.write(0, request.inputs[0] + request.inputs[1])

class Telling(Device):
    name = {name!r}
    def supports(self, model):
        return [True] * len(model.main.operations)
    def prepare(self, model, hints):
        if dict(hints.options) != {wanted!r}:
            raise InvalidArgument(f"options are {{dict(hints.options)}}")
        return Run()

device = Telling
"""
WANTED = {
    "fast": True,
    "slow": False,
    "level": 3,
    "least": -2,
    "share": 0.5,
    "small": 1e-3,
    "mode": "a=b:c",
    "none": "",
}
GIVEN = ["fast=true", "slow=false", "level=3", "least=-2", "share=0.5", "small=1e-3", "mode=a=b:c", "none="]


def test_values_are_what_they_look_like():
    typed = parse_options(GIVEN, ["mine"])["mine"]
    assert typed == WANTED and {k: type(v) for k, v in typed.items()} == {k: type(v) for k, v in WANTED.items()}
    texts = ["True", "nan", "inf", "1_000", "0x10", "\u0661"]
    assert list(parse_options([f"k{n}={t}" for n, t in enumerate(texts)], ["m"])["m"].values()) == texts


def test_options_are_of_the_device_that_is_named():
    assert parse_options(["a:k=1", "b:k=2"], ["a", "b"]) == {"a": {"k": 1}, "b": {"k": 2}}
    assert parse_options(["a:k=1"], None) == {"a": {"k": 1}}
    assert parse_options(["k=1", "b:k=2"], ["a", "b"], "a") == {"a": {"k": 1}, "b": {"k": 2}}


@pytest.mark.parametrize(
    ("texts", "devices", "told"),
    [
        (["k"], ["a"], "must be .DEVICE:.KEY=VALUE"),
        (["=1"], ["a"], "must be .DEVICE:.KEY=VALUE"),
        (["a:=1"], ["a"], "must be .DEVICE:.KEY=VALUE"),
        ([":k=1"], ["a"], "must be .DEVICE:.KEY=VALUE"),
        (["k=1"], ["a", "b"], "must be DEVICE:KEY=VALUE, DEVICE one of a, b"),
        (["k=1"], None, "as --device names none"),
        (["c:k=1"], ["a"], "DEVICE one of a"),
        (["k=1", "a:k=2"], ["a"], "k of a is given twice"),
    ],
)
def test_what_is_no_option_is_refused(texts, devices, told):
    with pytest.raises(click.BadParameter, match=told):
        parse_options(texts, devices)


@pytest.fixture
def drivers(tmp_path) -> list[str]:
    """Two drivers: one that wants all the options, one that wants none."""
    for name, wanted in (("mine", WANTED), ("other", {})):
        (tmp_path / f"{name}.py").write_text(DRIVER.format(name=name, wanted=wanted))
    return ["--driver", str(tmp_path / "mine.py"), "--driver", str(tmp_path / "other.py")]


VERBS = {
    "run": ["run", "add4", "--device", "mine"],
    "show": ["show", "add4", "--placement", "--device", "mine"],
    "diff": ["diff", "add4", "--device", "mine"],
    "diff against": ["diff", "add4", "--device", "other", "--against", "mine"],
    "bench": ["bench", "add4", "--device", "mine", "--iterations", "3", "--warmup", "0"],
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("isolate", [[], ["--isolate"]])
def test_every_verb_that_compiles_passes_options_on(drivers, verb, isolate):
    prefix = "mine:" if verb == "diff against" else ""
    options = [word for given in GIVEN for word in ("--option", prefix + given)]
    done = run_nnhal(*VERBS[verb], *drivers, *isolate, *options, "--json")
    assert done.returncode == 0 and json.loads(done.stdout), done.stdout + done.stderr
    done = run_nnhal(*VERBS[verb], *drivers, *isolate, "--json")
    assert done.returncode == 3 and "options are {}" in json.loads(done.stdout)["error"]["message"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("jobs", "isolate"), [("1", []), ("2", ["--isolate"])])
def test_the_suite_of_vectors_passes_options_on(drivers, vectors: Path, jobs, isolate):
    options = [word for given in GIVEN for word in ("--option", given)]
    only = ["--filter", "^V1_2/add_v1_2/add_v1_2$", "--published-only", "--jobs", jobs, "--device", "mine"]
    for given, totals in ((options, {"passed": 1, "failed": 0}), ([], {"passed": 0, "failed": 1})):
        done = run_nnhal("test", "vectors", "--vectors", str(vectors), *drivers, *only, *isolate, *given, "--json")
        found = json.loads(done.stdout)["totals"]
        assert {verdict: found[verdict] for verdict in totals} == totals


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seconds", ["nan", "inf", "1e300", "-1"])
@pytest.mark.parametrize("words", [["bench", "tiny_conv", "--duration"], ["run", "tiny_conv", "--tune"]])
def test_what_is_no_duration_is_wrong_usage(words, seconds):
    found = subprocess.run([sys.executable, "-m", "nnhal.cli.main", *words, seconds], capture_output=True, check=False)
    assert found.returncode == 2 and b"is not in the range" in found.stderr and b"Traceback" not in found.stderr


def test_a_socket_for_metrics_has_a_path():
    command = [sys.executable, "-m", "nnhal.cli.main", "serve", "reference", "--metrics", "unix:"]
    found = subprocess.run(command, capture_output=True, check=False, timeout=PROGRAM_LIMIT)
    assert found.returncode == 3 and b"must be HOST:PORT, PORT or unix:PATH" in found.stderr

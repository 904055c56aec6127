"""What `--json` prints is as docs/schemas.json says, for each verb, with nothing more and nothing less."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

import nnhal as nnhal_library
from nnhal.cli.main import NAMES
from nnhal.runtime.measured import record
from tests.cli.test_cli import EXAMPLE, nnhal
from tests.runtime.test_flow import nested, two
from tests.runtime.test_record import mine

SCHEMAS = json.loads((Path(__file__).parents[2] / "docs" / "schemas.json").read_text())
SPECS = str(Path(__file__).parents[1] / "conformance" / "specs" / "V1_0")
CALLS = {
    "run": [
        ["run", "tiny_conv_uint8", "--top", "2"],
        ["run", "tiny_lstm", "--isolate"],
        ["run", "add4", "--driver", EXAMPLE],
    ],
    "devices": [["devices"], ["devices", "--no-isolation"]],
    "doctor": [["doctor"]],
    "show": [["show", "tiny_conv_int8", "--placement"], ["show", "tiny_dynamic"], ["show", "tiny_lstm"]],
    "diff": [["diff", "tiny_conv", "--device", "litert"]],
    "bench": [
        ["bench", "tiny_conv", "--iterations", "5"],
        ["bench", "tiny_conv", "--profile", "--iterations", "5"],
        ["bench", "add4", "--profile", "--device", "reference", "--iterations", "5"],
        ["bench", "tiny_conv", "--vs", "litert", "--iterations", "10"],
    ],
    "serve": [["serve"]],
    "trace": [["trace", "summary"]],
    "models": [["models"], ["models", "tiny_conv"]],
    "test": [["test", "contract", "--filter", "^prepared-twice/ADD$", "--jobs", "1"]],
    "reduce": [["reduce", "add4", "--check", "false"]],
    "capture": [["capture", "--json"]],
    "replay": [["replay"], ["replay", "--list"], ["replay", "--model", "0"]],
    "vectors": [["vectors", SPECS], ["vectors", SPECS, "--compare"]],
    "verify": [["verify", "--operation", "SOFTMAX"], ["verify", "litert", "--operation", "SOFTMAX"]],
    "calibrate": [["calibrate", "--show"]],
    "tune": [["tune", "tiny_conv", "--duration", "0.05"]],
    "cache": [["cache", "list"], ["cache", "verify"], ["cache", "prune", "--size", "0"], ["cache", "clear"]],
}


def fits(document: Any, name: str) -> None:
    schema = {"$ref": f"#/$defs/{name}", **{k: v for k, v in SCHEMAS.items() if k != "title"}}
    errors = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(schema).iter_errors(document)]
    assert not errors


def test_every_verb_has_a_schema_that_is_one() -> None:
    assert set(NAMES) <= set(SCHEMAS["$defs"]) and set(CALLS) == set(NAMES)
    Draft202012Validator.check_schema(SCHEMAS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("verb", "words"), [(verb, words) for verb, calls in CALLS.items() for words in calls])
def test_what_a_verb_prints_is_as_its_schema_says(
    verb: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    if verb == "calibrate":
        record.keep_profile(mine())
    if verb == "cache":
        monkeypatch.setenv("NNHAL_CACHE_DIR", str(tmp_path / "cache"))
        nnhal("run", "add4", "--device", "litert")
    if verb == "trace":
        nnhal("run", "add4", "--isolate", "--device", "reference", "--trace", str(tmp_path / "a.pftrace"))
        words = [*words, str(tmp_path / "a.pftrace")]
    if verb == "capture":
        program = "import nnhal; nnhal.compile('add4', devices='reference')([1, 2, 3, 4], [1, 2, 3, 4])"
        words = [*words, "-o", str(tmp_path / "a"), "--", sys.executable, "-c", program]
    if verb == "replay":
        with nnhal_library.capture(tmp_path / "a"):
            nnhal_library.compile("add4", devices="reference")([1, 2, 3, 4], [1, 2, 3, 4])
        words = [*words, str(tmp_path / "a"), *(["-o", str(tmp_path / "m")] if "--model" in words else [])]
    if verb == "reduce":
        words = [*words, "--output", str(tmp_path / "reduced")]
    if verb == "vectors":
        words = [*words, *[str(tmp_path / "built")] * len(words[1:])]
    fits(json.loads(nnhal(*words, "--json")), verb)


def test_what_suites_print_of_vectors_is_as_their_schema_says(vectors: Path) -> None:
    words = "test", "vectors", "contract", "--vectors", str(vectors), "--isolate", "--jobs", "1", "--json"
    found = json.loads(nnhal(*words, "--filter", "^(V1_0/add|values/ADD$)"))
    fits(found, "test")
    assert all(suite["calls"]["prepareModel_1_3"] > 0 for suite in found["suites"])


@pytest.mark.parametrize(("words", "code"), [(["run", "nosuch"], 3), (["run", "add4", "--device", "nosuch"], 4)])
def test_errors_are_as_their_schema_says(words: list[str], code: int) -> None:
    fits(json.loads(nnhal(*words, "--json", code=code)), "error")


def test_what_a_service_prints_is_as_its_schema_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    words = [sys.executable, "-m", "nnhal.cli.main", "serve", "reference", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env={**os.environ}) as process:
        assert process.stdout is not None
        try:
            fits(json.loads(process.stdout.readline()), "serve DRIVER")
            found = json.loads(nnhal("serve", "--json"))
            assert found
            fits(found, "serve")
            fits(json.loads(nnhal("devices", "--no-isolation", "--json")), "devices")
        finally:
            process.terminate()


def test_a_field_too_many_too_few_or_of_another_type_does_not_fit() -> None:
    good = {"what": "a", "there": True, "detail": "", "needed_for": ""}
    fits([good], "doctor")
    for bad in ({**good, "more": 1}, {k: v for k, v in good.items() if k != "there"}, {**good, "there": "yes"}):
        with pytest.raises(AssertionError):
            fits([bad], "doctor")


def test_the_placement_of_control_flow_is_as_its_schema_says() -> None:
    compiled = nnhal_library.compile(nested(), devices=two())
    document = compiled.placement.to_dict()
    assert document["inside"][1]["inside"]
    fits(json.loads(json.dumps(document)), "placement")
    document["inside"][1]["inside"][0]["branch"] = "neither"
    with pytest.raises(AssertionError, match="neither"):
        fits(document, "placement")

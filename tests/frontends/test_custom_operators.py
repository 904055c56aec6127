"""Custom operators of files whose meaning somebody has registered: they become an extension's operations, or NNAPI's own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flatbuffers import flexbuffers

import nnhal
from nnhal.base.custom_operators import CUSTOM_OPERATORS, register_custom_operator
from nnhal.base.errors import DriverFailed, InvalidArgument, UnsupportedModel
from tests.execution import PROGRAM_LIMIT
from tests.frontends.cases import malformed, refused
from tests.frontends.flat import Writer

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_extension.py"
X = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)


def a_file(name: str = "Spectrum", inputs: int = 1, custom: bytes | None = None, **options: object) -> bytes:
    """One custom operator; options as the map of a flexbuffer."""
    w = Writer()
    xs, y = [w.tensor([1, 8]) for _ in range(inputs)], w.tensor([1, 8])
    w.operator(name, xs, [y], custom=list(flexbuffers.Dumps(options) if custom is None else custom))
    return w.file(xs, [y])


@pytest.fixture
def fourier():
    return nnhal.load_driver(EXAMPLE)


@pytest.mark.parametrize("isolation", ["none", "process"])
def test_it_runs_on_the_extensions_kernel_and_on_its_driver(fourier, isolation):
    model = nnhal.load(a_file(scale=2.0))
    assert [name for name, _ in model.extensions] == ["com.example.fourier"]
    expected = 2 * np.abs(np.fft.fft(X))
    assert np.allclose(nnhal.compile(model, devices="reference")(X), expected, atol=1e-5)
    compiled = nnhal.compile(model, devices=["fourier", "litert"], isolation=isolation)
    assert compiled.placement.devices() == {"fourier": 2, "litert": 1}
    assert np.allclose(compiled(X), expected, atol=1e-5)


def test_without_it_the_refusal_says_how_to_add_it(monkeypatch):
    monkeypatch.delitem(CUSTOM_OPERATORS, "Spectrum", raising=False)
    refused(a_file(), r"custom operation Spectrum #0: is unknown; nnhal\.register_custom_op")


def test_what_the_hook_refuses_is_the_operators_reason(fourier):
    refused(a_file(scale="much"), r"custom operation Spectrum #0: scale is 'much', must be a number")


def test_what_does_not_fit_its_record_is_refused_with_the_records_reason():
    register_custom_operator("Mine", lambda t: t.give("LSH_PROJECTION", t.x(0)))
    refused(a_file("Mine"), "custom operation Mine #0: LSH_PROJECTION needs an omitted input")


def test_it_may_become_operations_of_nnapi_and_sees_options_and_constants():
    seen = {}

    def lower(t):
        seen.update(t.flexbuffer(), custom=t.custom, known=t.known(t.x(0)))
        t.give("MUL", t.x(0), t.x(1), activation=0)

    register_custom_operator("Gain", lower, inputs=(1, 2))
    options = {
        "b": True,
        "f": 1.5,
        "i": -3,
        "s": "text",
        "list": [1, 2],
        "reals": [0.5],
        "mixed": ["a", 1],
        "map": {"x": 1},
    }
    model = nnhal.load(a_file("Gain", 2, **options, nothing=None))
    assert seen.pop("custom") == bytes(flexbuffers.Dumps({**options, "nothing": None})) and seen.pop("known") == (1, 8)
    assert seen == {**options, "map": None, "nothing": None}
    assert np.array_equal(nnhal.compile(model, devices="reference")(X, X), X * X)


def test_options_that_are_no_map_are_refused():
    register_custom_operator("Mine", lambda t: t.flexbuffer())
    for data in (b"", b"\xff" * 7, bytes(flexbuffers.Dumps([1, 2])), bytes(1 << 17)):
        refused(a_file("Mine", custom=data), r"custom operation Mine #0: has .*(options|bytes)")


def raises_it(t):
    return {}["what is not there"]


def names_an_operation_that_is_none(t):
    t.make("NOPE", t.x(0))


def gives_nothing(t):
    return t.x(0)


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        (raises_it, r"raised KeyError: 'what is not there' \(test_custom_operators.py, line \d+\)"),
        (
            names_an_operation_that_is_none,
            r"raised operation is 'NOPE', must be one of .*custom_operators.py, line \d+\)",
        ),
        (gives_nothing, "gave no output 0, must give each"),
    ],
)
def test_a_mistake_of_the_hook_names_file_operator_and_the_authors_line(hook, text, tmp_path):
    register_custom_operator("Mine", hook)
    path = tmp_path / "mine.tflite"
    path.write_bytes(a_file("Mine"))
    where = rf"{path}: custom operation Mine #0: its registered hook {hook.__name__}, "
    with pytest.raises(DriverFailed, match=where + text) as caught:
        nnhal.load(path)
    assert (hook.__name__ in caught.value.stack) == (hook is not gives_nothing)


@pytest.mark.parametrize(
    ("lower", "error", "text"),
    [
        (lambda t: t.give("MUL", t.x(0), t.x(0), activatoin=0), DriverFailed,
         "MUL has no argument 'activatoin', must be one of input1, input2, activation .*line"),
        (lambda t: t.give("MUL", t.x(0), np.ones(8), activation=0), DriverFailed,
         "MUL: argument 1 is array.*, must be a tensor or a number"),
        (lambda t: t.result(0, t.make("EQUAL", t.x(0), t.x(0), like=9)), DriverFailed,
         "gave TENSOR_BOOL8 for output 0, must be FLOAT32 as in the file"),
        (lambda t: t.refuse(""), UnsupportedModel, "Mine #0: is refused without a reason"),
        (lambda t: t.require(False, ""), UnsupportedModel, "Mine #0: is refused without a reason"),
        (lambda t: t.give("RESHAPE", t.x(0), t.integers([1.5, 8])), UnsupportedModel,
         r"integers are \[1.5, 8\], must be whole numbers"),
        (lambda t: t.give("SOFTMAX", t.x(0), beta=1.0, axis=0.5), UnsupportedModel, "0.5 does not fit INT32"),
        (lambda t: t.give("MUL", t.x(0), t.x(0), activation="none"), UnsupportedModel, "'none' does not fit INT32"),
    ],
)  # fmt: skip
def test_what_a_hook_gives_that_cannot_be_is_told(lower, error, text):
    register_custom_operator("Mine", lower)
    refused(a_file("Mine"), text, error)


def test_whole_numbers_of_any_kind_are_integers():
    def lower(t):
        reshaped = t.make("RESHAPE", t.x(0), t.integers(np.array([2.0, 4.0])))
        t.give("RESHAPE", reshaped, t.integers((1, np.int64(8))))

    register_custom_operator("Mine", lower)
    assert np.array_equal(nnhal.compile(nnhal.load(a_file("Mine")), devices="reference")(X), X)


@pytest.mark.parametrize("count", [0, 3])
def test_a_file_with_another_number_of_inputs_is_damaged(count):
    register_custom_operator("Mine", gives_nothing, inputs=(1, 2))
    w = Writer()
    xs, y = [w.tensor([1, 8]) for _ in range(3)], w.tensor([1, 8])
    w.operator("Mine", xs[:count], [y])
    malformed(w.file(xs, [y]), rf"operator 0 \(custom operation Mine\): has {count} inputs, must have 1 to 2")


def test_it_takes_the_place_of_what_was_there_before_and_leaves_builtin_operators_alone():
    for name in ("Convolution2DTransposeBias", "ABS"):
        for what in ("NEG", "EXP"):
            register_custom_operator(name, lambda t, what=what: t.give(what, t.x(0)))
    assert np.array_equal(
        nnhal.compile(nnhal.load(a_file("Convolution2DTransposeBias")), devices="reference")(X), np.exp(X)
    )
    w = Writer()
    x, y = w.tensor([1, 8]), w.tensor([1, 8])
    w.operator("ABS", [x], [y])
    assert np.array_equal(nnhal.compile(nnhal.load(w.file([x], [y])), devices="reference")(X), np.abs(X))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (("", gives_nothing), "name is '', must be the name"),
        ((3, gives_nothing), "name is 3, must be"),
        (("Mine", 3), "custom operator Mine: is lowered by 3, must be a function"),
        (("Mine", gives_nothing, -1), "inputs is -1, must be a number, or two"),
        (("Mine", gives_nothing, True), "inputs is True, must be a number"),
        (("Mine", gives_nothing, (2, 1)), r"inputs is \(2, 1\), must be the least and the greatest"),
        (("Mine", gives_nothing, (None, 1)), "inputs is"),
    ],
)
def test_what_cannot_be_registered_is_refused(given, text):
    name, hook, *inputs = given
    with pytest.raises(InvalidArgument, match=text):
        register_custom_operator(name, hook, **({"inputs": inputs[0]} if inputs else {}))
    assert "Mine" not in CUSTOM_OPERATORS


def test_from_the_command_line_a_driver_or_an_extension_file_brings_it(tmp_path):
    model, alone = tmp_path / "spectrum.tflite", tmp_path / "gain.py"
    model.write_bytes(a_file(scale=2.0))
    alone.write_text("import nnhal\nnnhal.register_custom_operator('Spectrum', lambda t: t.give('NEG', t.x(0)))\n")
    for options in (["--driver", str(EXAMPLE), "-d", "fourier", "-d", "reference"], ["--extension", str(alone)]):
        for verb in (["run", "--isolate"], ["show", "--placement"]):
            command = [sys.executable, "-m", "nnhal.cli.main", *verb[:1], str(model), *verb[1:], *options]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PROGRAM_LIMIT)
            assert done.returncode == 0, done.stderr
            assert ("com.example.fourier.FFT" in done.stdout) == ("--driver" in options)
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    command = [sys.executable, "-m", "nnhal.cli.main", "show", str(model), "--extension"]
    failed = subprocess.run([*command, str(broken)], check=False, capture_output=True, text=True, timeout=PROGRAM_LIMIT)
    assert failed.returncode == 4 and "ZeroDivisionError" in failed.stderr and "broken.py" in failed.stderr
    nowhere = subprocess.run(
        [*command, "nowhere.py"], check=False, capture_output=True, text=True, timeout=PROGRAM_LIMIT
    )
    assert nowhere.returncode == 3 and "is not a file, must be a Python file, or a folder" in nowhere.stderr


def test_an_extensions_operations_can_be_priced_among_several_devices(fourier):
    """Types of extensions have no facts among NNAPI's own."""
    b = nnhal.Builder()
    x = b.input((1, 8))
    name = "com.example.fourier"
    model = b.finish([x], [b.neg(b.operation(f"{name}.ABSOLUTE", b.operation(f"{name}.FFT", x)))])
    assert nnhal.compile(model, devices=["fourier", "reference"]).placement.devices() == {"fourier": 2, "reference": 1}

"""Vendor extensions: registered, named by models, supported by devices that say so, refused clearly by others."""

import importlib.util
import pickle  # noqa: TID251 (as applications do)
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import type_name
from nnhal.base.errors import InvalidArgument, InvalidModel, OperationFailed, UnsupportedModel
from nnhal.base.extensions import EXTENSIONS, ExtensionType, register_extension
from nnhal.base.levels import V1_2
from nnhal.ipc.protocol.convert import model_from_wire, model_to_wire
from nnhal.model.graph import Operation
from nnhal.runtime import discovery
from tests.models import make_subgraph

EXAMPLE = Path(__file__).parents[2] / "examples" / "my_extension.py"
X = np.random.default_rng(0).normal(size=(1, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("my_extension", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def model(example) -> nnhal.Model:
    b = nnhal.Builder()
    x = b.input((1, 8))
    return b.finish([x], [b.operation("com.example.fourier.ABSOLUTE", b.operation("com.example.fourier.FFT", x))])


def test_a_model_carries_the_extension_and_needs_1_2(example, model):
    assert model.extensions == (("com.example.fourier", example.FOURIER.prefix),)
    assert nnhal.level_of(model) == V1_2


def test_its_device_runs_it(example, model):
    y = nnhal.compile(model, devices=[example.FourierDevice()])(X)
    assert np.allclose(y, np.abs(np.fft.fft(X)), atol=1e-5)


def test_the_reference_runs_it_where_its_records_are_registered(model):
    assert np.allclose(nnhal.compile(model, devices="reference")(X), np.abs(np.fft.fft(X)), atol=1e-5)


def test_a_device_without_the_extension_refuses_it(model):
    with pytest.raises(UnsupportedModel, match=r"litert: does not support the extension com.example.fourier"):
        nnhal.compile(model, devices="litert")


def test_it_never_falls_back(example, model, monkeypatch):
    device = example.FourierDevice()
    with pytest.raises(UnsupportedModel, match="operations of extensions never fall back"):
        nnhal.compile(model, devices="litert", fallback="allow")

    def broken(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(example.Transformer, "run", broken)
    compiled = nnhal.compile(model, devices=[device], fallback="allow")
    with pytest.raises(OperationFailed, match="device fourier: RuntimeError: broken"):
        compiled(X)


def elsewhere(model: nnhal.Model, theirs: int) -> nnhal.Model:
    """The model as a process has it whose prefix of the extension is another."""

    def moved(code: int) -> int:
        return theirs << 16 | code & 0xFFFF if code >> 16 else code

    operands = tuple(replace(o, type=moved(o.type)) for o in model.main.operands)
    operations = tuple(Operation(moved(o.type), o.inputs, o.outputs) for o in model.main.operations)
    main = replace(model.main, operands=operands, operations=operations)
    return replace(model, main=main, extensions=(("com.example.fourier", theirs),))


def over_the_wire(model: nnhal.Model) -> nnhal.Model:
    return model_from_wire(model_to_wire(model, lambda _: pytest.fail("has no pools")), lambda _: pytest.fail("none"))


def pickled(model: nnhal.Model) -> nnhal.Model:
    return pickle.loads(pickle.dumps(model))


def test_a_model_made_elsewhere_may_have_another_prefix(model):
    other = elsewhere(model, 77)
    assert np.allclose(nnhal.compile(other, devices="reference")(X), np.abs(np.fft.fft(X)), atol=1e-5)


@pytest.mark.parametrize("brought", [over_the_wire, pickled])
def test_a_model_that_comes_from_another_process_has_this_ones_codes_so_that_drivers_may_compare_them(
    example, model, brought
):
    assert brought(elsewhere(model, 77)) == brought(model) == model
    y = nnhal.compile(brought(elsewhere(model, 77)), devices=[example.FourierDevice()])(X)
    assert np.allclose(y, np.abs(np.fft.fft(X)), atol=1e-5)


@pytest.mark.parametrize("brought", [over_the_wire, pickled])
def test_an_extension_that_is_unknown_here_gets_no_prefix_of_another(example, model, brought):
    mine = model.extensions[0][1]
    unknown = replace(model, extensions=(("com.example.unknown", mine),))
    ((name, prefix),) = brought(unknown).extensions
    assert name == "com.example.unknown" and prefix not in {each.prefix for each in EXTENSIONS.values()}
    assert [o.type >> 16 for o in brought(unknown).main.operations] == [prefix, prefix]
    assert brought(replace(unknown, extensions=(("com.example.unknown", 99),))).extensions[0][1] == 99
    twice = replace(model, extensions=((name, mine), ("com.example.fourier", mine)))
    assert brought(twice) == twice


def test_an_operation_whose_extension_the_model_does_not_name_is_refused(model):
    with pytest.raises(InvalidModel, match="must be of an extension that the model names"):
        nnhal.validate(replace(model, extensions=()))


def test_an_extension_that_nobody_registered_is_carried_and_refused_by_the_devices(model):
    unknown = replace(model, extensions=(("com.example.unknown", model.extensions[0][1]),))
    nnhal.validate(unknown)
    with pytest.raises(UnsupportedModel, match=r"does not support the extension com.example.unknown"):
        nnhal.compile(unknown, devices="reference")


def test_types_have_their_names(example):
    assert type_name(example.COMPLEX) == "com.example.fourier.TENSOR_COMPLEX64"


def test_registering_again_is_fine_and_registering_otherwise_is_not(example):
    again = register_extension("com.example.fourier", [ExtensionType("TENSOR_COMPLEX64", "<c8")], ["FFT", "ABSOLUTE"])
    assert again is EXTENSIONS["com.example.fourier"]
    with pytest.raises(InvalidArgument, match="already registered with other types"):
        register_extension("com.example.fourier")


@pytest.mark.parametrize("name", ["fourier", "Com.example", "com..x", ""])
def test_names_are_reversed_domains(name):
    with pytest.raises(InvalidArgument, match="must be a reversed domain"):
        register_extension(name)


def test_the_driver_file_loads():
    assert discovery.load_driver(EXAMPLE).extensions == ("com.example.fourier",)


def test_an_extension_that_only_a_subgraph_uses_is_carried(example):
    b = nnhal.Builder()
    x, yes = b.input((1, 8)), b.input((1,), "TENSOR_BOOL8")
    fourier = "com.example.fourier"
    branches = [
        make_subgraph(b, lambda s, y: s.operation(f"{fourier}.ABSOLUTE", s.operation(f"{fourier}.FFT", y)), (1, 8)),
        make_subgraph(b, lambda s, y: s.neg(y), (1, 8)),
    ]
    model = b.finish([yes, x], [b.if_(yes, *branches, [x], out_type="TENSOR_FLOAT32")])
    assert [name for name, _ in model.extensions] == ["com.example.fourier"]
    compiled = nnhal.compile(model, devices="reference")
    for condition, expected in ((True, np.abs(np.fft.fft(X))), (False, -X)):
        assert np.allclose(compiled(np.array([condition]), X), expected, atol=1e-5)

"""One lowering for graph engines: each operation is lowered once, and a back end writes the primitives."""

import ast
from pathlib import Path

import numpy as np
import pytest

from nnhal.conformance.draw import cells
from nnhal.drivers import reference
from nnhal.drivers.kit import operations
from nnhal.drivers.kit.lowering import LoweringTable
from nnhal.drivers.kit.onnx import TABLE as ONNX
from nnhal.drivers.kit.onnx import entries
from nnhal.drivers.kit.operations import ENTRIES, Primitives, RealPrimitives
from tests.comparing import as_code, compare_device
from tests.differential.drawing import seeds
from tests.drivers.numpy_driver import NumpyDevice

KIT = Path(operations.__file__).parent
# operations that ONNX Runtime lowers in another way, and why; the tasks of `kit.onnx` call the common entries otherwise
REPLACED = {
    "LOGISTIC": "its sigmoid is 0 below -18",
    "CONV_2D": "products of 8 bits",
    "DEPTHWISE_CONV_2D": "products of 8 bits",
    "GROUPED_CONV_2D": "products of 8 bits",
    "FULLY_CONNECTED": "products of 8 bits",
    "L2_NORMALIZATION": "float64",
    "LOCAL_RESPONSE_NORMALIZATION": "float64",
    "INSTANCE_NORMALIZATION": "float64",
}
ONLY_ONNX = {"HASHTABLE_LOOKUP"}
EVERY = 5  # of the types and classes of values of an operation


def openvino_table() -> LoweringTable[operations.GraphTask]:
    pytest.importorskip("openvino")
    from nnhal.drivers.openvino.device import TABLE

    return TABLE  # type: ignore[return-value]  # of a subclass


def test_onnx_replaces_only_entries_that_have_a_reason() -> None:
    assert set(ONNX.entries) - set(ENTRIES) == ONLY_ONNX
    replaced = {name for name, entry in ENTRIES.items() if ONNX.entries[name].lower is not entry.lower}
    assert replaced == set(REPLACED)


def test_openvino_lowers_every_operation_by_the_common_entry() -> None:
    found = {name: entry.lower for name, entry in openvino_table().entries.items()}
    assert found == {name: entry.lower for name, entry in ENTRIES.items()}


def test_both_engines_claim_the_same_types_but_for_two_operations() -> None:
    other = openvino_table().entries
    unlike = {name for name, entry in ONNX.entries.items() if name in other and entry.types != other[name].types}
    assert unlike == {"CAST", "DIV"}


def test_common_entries_name_no_engine_but_in_prose() -> None:
    for path in KIT.glob("*.py"):
        modules = [node.module for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
        assert not [
            name for name in modules if name and ("kit.onnx" in name or "kit.real" in name or "openvino" in name)
        ]


def test_each_primitive_is_used_by_a_common_entry_or_a_task() -> None:
    text = "".join(path.read_text() for path in (*KIT.glob("*.py"), *(KIT.parent / "real").glob("*.py")))
    names = [name for kind in (Primitives, RealPrimitives) for name in vars(kind) if not name.startswith("_")]
    assert len(names) > 30
    assert not [name for name in names if f".{name}" not in text]


def test_the_replaced_entries_are_written_beside_each_other() -> None:
    functions = {ONNX.entries[name].lower for name in (*REPLACED, *ONLY_ONNX)}
    assert {function.__module__ for function in functions} == {entries.__name__}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", sorted(ENTRIES))
def test_the_common_entry_computes_as_defined_with_plain_primitives(name: str) -> None:
    device, found = NumpyDevice(), []
    for cell in list(cells([name]))[::EVERY]:
        found += compare_device(device, reference.device(), cell, np.random.default_rng(seeds(cell)), 3)
    assert name == "FILL" or "agrees" in {result.outcome for result in found}  # its drawn shape is given at execution
    assert not [(result.reason, as_code(result.call)) for result in found if result.outcome == "differs"]

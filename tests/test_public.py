"""What `nnhal` exports is the public API: a name comes or goes on purpose, and each says what it is."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nnhal
from nnhal import driver
from nnhal.base import errors

PUBLIC = [
    "Allocation",
    "BadFile",
    "BadState",
    "Binding",
    "Builder",
    "Cancelled",
    "Capture",
    "ChannelQuant",
    "Closed",
    "Compiled",
    "CompiledBurst",
    "CompiledByShape",
    "ContractBroken",
    "DeadObject",
    "DeviceUnavailable",
    "DriverFailed",
    "ErrorStatus",
    "Execution",
    "FallbackWarning",
    "Fence",
    "Fenced",
    "InvalidArgument",
    "InvalidModel",
    "InvalidRequest",
    "Level",
    "LoopTimeout",
    "Memory",
    "MissedDeadline",
    "Model",
    "NnhalError",
    "OpenModel",
    "OperationFailed",
    "OutOfMemory",
    "OutputInsufficientSize",
    "Placement",
    "Preference",
    "Priority",
    "Report",
    "ResourceExhausted",
    "Rule",
    "ShapeNeeded",
    "Stream",
    "Tensor",
    "Trace",
    "Unmappable",
    "UnsupportedModel",
    "allocate",
    "capture",
    "compile",
    "devices",
    "fence_pair",
    "level_of",
    "load",
    "load_driver",
    "load_extension",
    "register_custom_operator",
    "trace",
    "validate",
]
FUNCTIONS = [name for name in PUBLIC if inspect.isfunction(getattr(nnhal, name))]
CLASSES = [name for name in PUBLIC if inspect.isclass(getattr(nnhal, name))]


def test_these_are_the_public_names_and_dir_shows_no_other() -> None:
    assert nnhal.__all__ == sorted(PUBLIC)
    assert dir(nnhal) == sorted([*PUBLIC, "__version__"])
    program = "import nnhal; b = nnhal.Builder(); nnhal.Compiled; nnhal.load; print(*dir(nnhal))"
    shown = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert shown == dir(nnhal)  # also after use, when modules have been imported


def test_type_checkers_are_told_of_the_same_names() -> None:
    tree = ast.parse(Path(nnhal.__file__).read_text())
    checking = next(node for node in tree.body if isinstance(node, ast.If))
    told = [alias.name for node in checking.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(told) == sorted(PUBLIC)


def test_every_error_that_nnhal_documents_is_public() -> None:
    found = {
        name for name, each in vars(errors).items() if inspect.isclass(each) and issubclass(each, errors.NnhalError)
    }
    assert found <= set(nnhal.__all__)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'nnhal' has no attribute 'nothing'"):
        _ = nnhal.nothing


def public(of: type) -> dict[str, Any]:
    """The methods and properties of a class that nnhal wrote."""
    found = {name: inspect.getattr_static(of, name) for name in dir(of) if not name.startswith("_")}
    kinds = (property, staticmethod, classmethod)
    return {name: a for name, a in found.items() if inspect.isfunction(a) or isinstance(a, kinds)}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_and_every_method_says_what_it_is(name: str) -> None:
    thing = getattr(nnhal, name)
    assert thing.__doc__ and not thing.__doc__.startswith(f"{name}(")  # which dataclasses write for want of one
    for method, found in public(thing).items() if name in CLASSES else ():
        assert inspect.getdoc(found), f"{name}.{method}"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_help_of_a_function_names_its_parameters(name: str) -> None:
    function = getattr(nnhal, name)
    doc = inspect.getdoc(function) or ""
    unsaid = [p for p in inspect.signature(function).parameters if p not in doc]
    assert unsaid == []


# ------------------------------------------------------------------------------------------------- the drivers' namespace

EXAMPLES = Path(nnhal.__file__).parents[2] / "examples"
RECORDS = {"nnhal", "nnhal.base.extensions", "nnhal.ops.schema"}  # what an extension's own operations are declared with


def test_names_of_the_driver_namespace_are_there_and_type_checkers_see_the_same() -> None:
    tree = ast.parse(Path(driver.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module not in ("typing", "nnhal.base.lazy")
        for alias in node.names
    }
    assert set(driver.__all__) == imported and dir(driver) == sorted(driver.__all__)
    assert all(hasattr(driver, name) for name in driver.__all__)


def test_a_driver_that_does_not_use_the_kit_does_not_import_it() -> None:
    program = "import sys, nnhal.driver; print([m for m in sys.modules if m.startswith('nnhal.drivers')])"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "[]\n"


@pytest.mark.parametrize("file", [*sorted(EXAMPLES.glob("my_*.py")), EXAMPLES / "onnx_driver.py"], ids=lambda f: f.stem)
def test_the_example_drivers_import_the_driver_namespace_alone(file: Path) -> None:
    tree = ast.parse(file.read_text())
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module}
    modules |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    allowed = {"nnhal.driver", *(RECORDS if file.stem == "my_extension" else ())}
    assert {module for module in modules if module.split(".")[0] == "nnhal"} <= allowed

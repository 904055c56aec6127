"""What `nnhal` exports is the public API: a name comes or goes on purpose, and each says what it is."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import nnhal

PUBLIC = [
    "Allocation",
    "BadFile",
    "BadState",
    "Binding",
    "Builder",
    "Cancelled",
    "ChannelQuant",
    "Closed",
    "Compiled",
    "CompiledBurst",
    "CompiledByShape",
    "DeadObject",
    "DeviceUnavailable",
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

"""The scripts in benchmarks import names that nnhal has."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parents[2] / "benchmarks").rglob("*.py"))


def imported(script: Path) -> list[tuple[str, str]]:
    """The module and the name of each import from nnhal."""
    nodes = [node for node in ast.walk(ast.parse(script.read_text())) if isinstance(node, ast.ImportFrom)]
    return [
        (node.module, each.name) for node in nodes if (node.module or "").startswith("nnhal") for each in node.names
    ]


def exists(module: str, name: str) -> bool:
    if hasattr(import_module(module), name):
        return True
    try:
        import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_benchmark_imports_names_that_there_are(script):
    assert [each for each in imported(script) if not exists(*each)] == []

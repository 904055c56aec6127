"""One name, one class: who reads a name in a traceback, a message or a search knows which class is meant."""

import ast
from collections import defaultdict
from pathlib import Path

import nnhal


def test_no_two_modules_have_a_class_of_one_name():
    root = Path(nnhal.__file__).parent
    found = defaultdict(list)
    for file in sorted(root.rglob("*.py")):
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found[node.name].append(str(file.relative_to(root)))
    assert len(found) > 300
    assert {name: files for name, files in found.items() if len(files) > 1} == {}

"""One name, one class: who reads a name in a traceback, a message or a search knows which class is meant."""

import ast
import builtins
import re
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


# How docstrings name the exceptions of a function: in a sentence, or in a section of Google's style.
RAISED = re.compile(
    r"\b[Rr]aises? ([A-Z]\w*[a-z]\w*)|\b([A-Z][a-z]+(?:[A-Z][a-z]+)+) (?:if|unless|until|has the reason)\b"
)
SECTION = re.compile(r"^( *)Raises:\n((?:\1 +.*\n?)+)", re.M)
ENTRY = re.compile(r"^ +(\w+): ", re.M)


def test_docstrings_name_exceptions_that_exist():
    """A class that gets another name leaves the old one in the docstrings of the functions that raise it."""
    root = Path(nnhal.__file__).parent
    named, exist = defaultdict(list), set(dir(builtins))
    for file in sorted(root.rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom):
                exist.update(alias.asname or alias.name for alias in node.names)
            elif isinstance(node, ast.Attribute):
                exist.add(node.attr)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.Module):
                exist.add(getattr(node, "name", ""))
                text = ast.get_docstring(node) or ""
                names = [name for match in RAISED.finditer(text) for name in match.groups() if name]
                names += [name for section in SECTION.finditer(text) for name in ENTRY.findall(section[2])]
                for name in names:
                    named[name].append(f"{file.relative_to(root)}:{getattr(node, 'lineno', 1)}")
    assert len(named) > 30
    assert {name: places for name, places in named.items() if name not in exist} == {}

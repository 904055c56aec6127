"""No test may fail by chance: what tests must not do, unless they are for the nightly run.

Tests wait for events (`tests.waiting.until`), play a clock (`Clock`), and look at what they opened themselves (`Opened`,
`Started`); work is counted in lines (`tests.effort`).
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import LIMIT

TESTS = Path(__file__).parent
RESIDENT = ("VmRSS", "/proc/self/statm", "/proc/self/smaps_rollup", "smaps_rollup")
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time"}
SLEEP = re.compile(r"\bsleep(?:\(| +)([^)\s;]*)")  # of Python and of the shell, in the text of a program
FOR_EVER = 10 * LIMIT  # seconds: a program that sleeps so long is ended by its test
# File and function that may all the same, and why.
ALLOWED = {
    ("conformance/test_looks.py", "test_what_a_process_holds_is_what_the_system_says"): "of one that only waits",
    ("faults/test_clients.py", "_resident"): "for a nightly test",
    ("drivers/test_given_up.py", "ENDING"): "wherever an execution is then, the program ends well",
    ("ipc/test_connection.py", "of_services"): "kinds of objects that its test alone makes",
    ("test_determinism.py", "RESIDENT"): "what is looked for",
    ("test_determinism.py", "test_a_sleep_in_the_text_of_a_program_is_seen"): "what is looked for",
    ("ipc/test_output.py", "test_a_forked_child_of_the_client_has_nothing_of_it"): "numbers that a child has too",
}


def parts_of(path: Path) -> Iterator[tuple[str, ast.AST]]:
    """Functions of a file and what it assigns outside of them, each with its name, without the nightly functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and "pytest.mark.nightly" not in map(ast.unparse, node.decorator_list):
            yield node.name, node
    for node in tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            yield ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target), node


def spent(node: ast.AST) -> bool:
    """Whether something is a difference of two readings of a clock."""
    return (
        isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.Sub)
        and any(
            isinstance(side, ast.Call) and isinstance(side.func, ast.Attribute) and side.func.attr in CLOCKS
            for side in (node.left, node.right)
        )
    )


def bounded(test: ast.expr, timed: set[str]) -> bool:
    """Whether an assertion says that something took less than so long."""

    def long(side: ast.expr) -> bool:
        return spent(side) or (isinstance(side, ast.Name) and side.id in timed)

    for each in ast.walk(test):
        if isinstance(each, ast.Compare):
            for left, how, right in zip((each.left, *each.comparators), each.ops, each.comparators, strict=False):
                if (long(left) and isinstance(how, ast.Lt | ast.LtE)) or (
                    long(right) and isinstance(how, ast.Gt | ast.GtE)
                ):
                    return True
    return False


def of_text(text: str) -> str:
    """What is wrong with a text, which may be a program, "" for nothing."""
    if text in RESIDENT:
        return "resident memory: mark it nightly"
    for seconds in SLEEP.findall(text):
        if not seconds.isdigit() or int(seconds) < FOR_EVER:
            return f"a program sleeps {seconds or '?'} s: have it wait for an event, or {FOR_EVER:.0f} s if the test ends it"
    return ""


def of_call(node: ast.Call) -> str:
    """What is wrong with a call, "" for nothing."""
    called = ast.unparse(node.func)
    if called == "time.sleep":
        return "time.sleep: wait for an event (`until`), or use `pass_time` or `jitter`"
    if called in ("threading.active_count", "gc.get_objects"):
        return f"{called}: look at what the test started itself (`Started`)"
    if called == "os.listdir" and "/proc/self/fd" in ast.unparse(node):
        return "descriptors of the process: look at those that the test opened (`Opened`)"
    if called == "random.SystemRandom":
        return "random numbers that nobody can draw again: use random.Random(seed)"
    return ""


def read_at_once(node: ast.AST) -> Iterator[ast.AST]:
    """A node and its parts, without the bodies of functions."""
    if not isinstance(node, ast.Lambda):
        yield node
        for part in ast.iter_child_nodes(node):
            yield from read_at_once(part)


def faults(part: ast.AST) -> Iterator[str]:
    """What a part of a test file does that it must not, by line."""
    timed = {
        target.id
        for node in ast.walk(part)
        if isinstance(node, ast.Assign) and spent(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    decorators = part.decorator_list if isinstance(part, ast.FunctionDef) else []
    for node in (node for each in decorators for node in read_at_once(each)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time" and node.attr in CLOCKS:
            yield f"{node.lineno}: reads the clock when it is collected, which may be an hour before it runs"
    for node in ast.walk(part):
        wrong = ""
        if isinstance(node, ast.Call):
            wrong = of_call(node)
        elif isinstance(node, ast.Assert) and bounded(node.test, timed):
            wrong = "asserts that something is quick: play a clock, or mark it nightly"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            wrong = of_text(node.value)
        if wrong:
            yield f"{node.lineno}: {wrong}"


def test_no_test_depends_on_time_on_chance_or_on_what_others_do() -> None:
    found, used = [], set()
    for path in sorted(TESTS.rglob("test_*.py")):
        name = str(path.relative_to(TESTS))
        for own, part in parts_of(path):
            wrong = list(faults(part))
            if wrong and (name, own) in ALLOWED:
                used.add((name, own))
                continue
            found += [f"tests/{name}:{each}" for each in wrong]
    assert not found, "\n".join(found)
    assert used == ALLOWED.keys(), "allowed, and not needed any more"


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("def test(): run('import time; time.sleep(1.1)')", True),
        ("def test(): run(f'time.sleep({seconds})')", True),
        ("def test(): run(['sh', '-c', 'sleep 2; echo late'])", True),
        ("PROGRAM = '''\nimport time\ntime.sleep(0.5); print(1); time.sleep(600)'''", True),
        ("@pytest.mark.nightly\ndef test(): run('time.sleep(1.1)')", False),
        ("def test(): run('time.sleep(600)')", False),
    ],
)
def test_a_sleep_in_the_text_of_a_program_is_seen(tmp_path: Path, source: str, seen: bool) -> None:
    path = tmp_path / "test_it.py"
    path.write_text(source)
    assert bool([fault for _, part in parts_of(path) for fault in faults(part)]) == seen

"""No test may fail by chance: what tests must not do, unless they are for the nightly run.

Tests wait for events (`tests.waiting.until`), play a clock (`Clock`), and look at what they opened themselves (`Opened`,
`Started`); work is counted in lines (`tests.effort`).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
RESIDENT = ("VmRSS", "/proc/self/statm", "/proc/self/smaps_rollup", "smaps_rollup")
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "thread_time", "time"}
# File and function that may all the same, and why.
ALLOWED = {
    ("conformance/test_looks.py", "test_what_a_process_holds_is_what_the_system_says"): "of one that only waits",
    ("faults/test_clients.py", "_resident"): "for a nightly test",
    ("ipc/test_connection.py", "of_services"): "kinds of objects that its test alone makes",
    ("ipc/test_output.py", "test_a_forked_child_of_the_client_has_nothing_of_it"): "numbers that a child has too",
}


def functions_of(path: Path) -> Iterator[ast.FunctionDef]:
    """Functions of a file, without the nightly ones."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and not any(
            "mark.nightly" in ast.unparse(each) for each in node.decorator_list
        ):
            yield node


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


def faults(function: ast.FunctionDef) -> Iterator[str]:
    """What a test does that it must not, by line."""
    timed = {
        target.id
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and spent(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in (part for each in function.decorator_list for part in read_at_once(each)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "time" and node.attr in CLOCKS:
            yield f"{node.lineno}: reads the clock when it is collected, which may be an hour before it runs"
    for node in ast.walk(function):
        wrong = ""
        if isinstance(node, ast.Call):
            wrong = of_call(node)
        elif isinstance(node, ast.Assert) and bounded(node.test, timed):
            wrong = "asserts that something is quick: play a clock, or mark it nightly"
        elif isinstance(node, ast.Constant) and node.value in RESIDENT:
            wrong = "resident memory: mark it nightly"
        if wrong:
            yield f"{node.lineno}: {wrong}"


def test_no_test_depends_on_time_on_chance_or_on_what_others_do() -> None:
    found, used = [], set()
    for path in sorted(TESTS.rglob("test_*.py")):
        name = str(path.relative_to(TESTS))
        for function in functions_of(path):
            wrong = list(faults(function))
            if wrong and (name, function.name) in ALLOWED:
                used.add((name, function.name))
                continue
            found += [f"tests/{name}:{each}" for each in wrong]
    assert not found, "\n".join(found)
    assert used == ALLOWED.keys(), "allowed, and not needed any more"

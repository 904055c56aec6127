"""LiteRT's greeting does not reach stderr; everything else does."""

import os
import subprocess
import sys
import threading

import pytest

from nnhal.drivers.litert import engine
from nnhal.drivers.litert.engine import GREETING, drop_greeting
from tests.waiting import LIMIT

USE = """
import numpy as np, nnhal
b = nnhal.Builder()
x = b.input((1,))
model = b.finish([x], [b.floor(x)])
print(nnhal.compile(model, devices=["litert"], isolation={isolation!r})(np.float32([1.5])))
"""
PEER = """
from nnhal.measure import peers
from nnhal.zoo import maker
peers.peer("litert", maker.path("tiny_conv"), 1)
"""


@pytest.mark.parametrize("program", [USE.format(isolation="none"), USE.format(isolation="process"), PEER])
def test_nothing_is_said_on_stderr(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stderr == b""


def test_litert_greets_before_it_is_handed_out(monkeypatch):
    allocated, module = [], engine.engine()
    monkeypatch.setattr(engine, "drop_greeting", lambda call: allocated.append(call()))
    assert engine.engine.__wrapped__() is module
    assert len(allocated) == 1


def test_what_others_write_meanwhile_arrives_and_what_their_processes_write_later(capfd):
    def call():
        os.write(2, b"before\n" + GREETING[:10])
        os.write(2, GREETING[10:] + b"\nINFO: Created something else\nno end of line")
        other = threading.Thread(target=os.write, args=(2, b" of a thread\n"))
        other.start()
        other.join()
        children.append(subprocess.Popen(["/bin/sh", "-c", "read line; echo late >&2"], stdin=subprocess.PIPE))

    children = []
    drop_greeting(call)
    os.write(2, b"after\n")
    children[0].communicate(b"now\n")
    assert children[0].returncode == 0
    threads = [t for t in threading.enumerate() if t.name == "nnhal-stderr"]
    for thread in threads:
        thread.join(LIMIT)
    assert capfd.readouterr().err == "before\nINFO: Created something else\nno end of line of a thread\nafter\nlate\n"


def test_stderr_is_itself_again_when_the_call_fails(capfd):
    def call():
        os.write(2, b"why\n")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        drop_greeting(call)
    os.write(2, b"after\n")
    assert capfd.readouterr().err == "why\nafter\n"


def test_without_a_stderr_it_is_just_called():
    program = "import os; os.close(2)\n" + USE.format(isolation="none")
    assert subprocess.run([sys.executable, "-c", program], check=True, capture_output=True).stdout == b"[1.]\n"

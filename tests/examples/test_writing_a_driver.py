"""What docs/writing-a-driver.md says of bound operations, and its commands."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import nnhal
from nnhal.base.codes import Activation, OperandType
from nnhal.base.operands import Unknown
from nnhal.model.validate import validate
from nnhal.ops.common import ACTIVATION_RANGE, out_size, padding

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "writing-a-driver.md").read_text()
COMMANDS = re.search(r"```sh\n(.*?)```", PAGE, re.S)[1].splitlines()


@pytest.mark.parametrize("line", COMMANDS)
def test_each_command_runs_as_it_stands(line, vectors):
    words = shlex.split(line.replace("VECTORS", str(vectors)), comments=True)
    if words[1] == "conformance":
        words += ["--operation", "ADD", "--jobs", "2"]
    assert words.pop(0) == "nnhal"
    done = subprocess.run(
        [sys.executable, "-m", "nnhal.cli.main", *words], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == 0 and "mine" in done.stdout, done.stdout + done.stderr


@pytest.fixture(scope="module")
def found() -> dict:
    """The names of the page's Python, once it has run."""
    code = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.S) if "form.slots" in block)
    names = {"nnhal": nnhal, "validate": validate, "padding": padding, "out_size": out_size}
    names |= {"weights": np.ones((16, 3, 3, 3), np.float32), "bias": np.zeros(16, np.float32)}
    exec(code, names := names | {"ACTIVATION_RANGE": ACTIVATION_RANGE})
    return names


def test_a_bound_operation_reads_as_the_page_says(found):
    a = found["a"]
    assert (a.op.name, a.T) == ("CONV_2D", OperandType.TENSOR_FLOAT32)
    assert (a.stride_w, a.activation) == (2, Activation.RELU)
    assert (a.height, a.filter_h) == (8, 3)
    assert len(a.given) == len(found["operation"].inputs) and a.given[0] is a.input
    assert a.shapes == [(1, 4, 4, 16)] and a.outs[0].shape == (1, 4, 4, 16)
    assert found["places"]["filter"] == (1,) and found["places"]["nchw"] == () and a.nchw is False
    assert (a.input.type, a.input.shape, a.input.name) == (OperandType.TENSOR_FLOAT32, (1, 8, 8, 3), "x")
    assert (a.input.scale, a.input.zero_point, a.input.channel, a.input.data) == (0, 0, None, None)
    with pytest.raises(ValueError, match="read-only"):
        a.filter.data[0] = 1
    assert padding(a, "h") == (0, 1) and out_size("h")(a) == 4 and ACTIVATION_RANGE[a.activation] == (0, np.inf)
    assert a.form_has("scheme") and not a.form_has("pad_left")


def test_what_is_not_known_before_the_execution_says_so():
    b = nnhal.Builder()
    x = b.input((1, None, None, 3))
    model = b.finish([x], [b.conv_2d(x, np.ones((16, 3, 3, 3), np.float32), np.zeros(16, np.float32), padding="same")])
    a = validate(model).subgraphs[0].operations[0]
    assert a.deferred and a.shapes == [(1, None, None, 16)]
    with pytest.raises(Unknown):
        _ = a.height

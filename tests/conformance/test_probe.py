"""What a device is asked about each operation: the record's example, as a model of one operation."""

from typing import Any

import numpy as np
import pytest

from nnhal.base.codes import Lifetime, OperandType, OperationType
from nnhal.base.errors import OperationFailed
from nnhal.conformance.probe import _floats, _models, example_model, probe
from nnhal.hal.device import Verdict
from nnhal.hal.wrappers import Wrapper
from nnhal.ops import OPS
from nnhal.runtime import discovery


class Judging(Wrapper):
    """The reference, with verdicts of its own."""

    def __init__(self, judge: Any) -> None:
        super().__init__(discovery.cpu())
        self.judge, self.asked = judge, 0

    def supports(self, model: Any) -> Any:
        self.asked += 1
        return [self.judge(OperationType(operation.type).name) for operation in model.main.operations]


def test_each_operation_but_control_flow_is_asked_about_once() -> None:
    device = Judging(lambda name: Verdict(name != "ADD", f"no {name}"))
    found = probe(device)
    assert set(found) == set(OperationType.__members__) - {"IF", "WHILE", "OEM_OPERATION"}
    assert device.asked == len(found)
    assert found["ADD"] == Verdict(False, "no ADD") and all(v.ok for name, v in found.items() if name != "ADD")
    assert all(verdict.ok for verdict in probe(discovery.cpu()).values())


def test_a_device_that_fails_says_no_and_why() -> None:
    def judge(name: str) -> Verdict:
        if name == "MUL":
            raise OperationFailed("not today")
        return Verdict(True)

    found = probe(Judging(judge))
    assert not found["MUL"].ok and "not today" in found["MUL"].reason and found["ADD"].ok


def test_models_are_made_once() -> None:
    first, again = dict(_models()), dict(_models())
    assert first and all(again[name] is model for name, model in first.items())


@pytest.mark.parametrize(
    ("name", "given", "place", "outputs"),
    [
        ("ADD", (2, 2), 0, 1), ("SELECT", (2,), 1, 1), ("EMBEDDING_LOOKUP", (3, 2), 1, 1), ("SPLIT", (4,), 0, 2),
        ("LSTM", (1, 1), 0, 4), ("CAST", (2,), 0, 1), ("GATHER", (3,), 0, 1),
        ("CONCATENATION", None, 0, 1), ("LOGICAL_AND", None, 0, 1), ("DEQUANTIZE", None, 0, 1),
        ("QUANTIZED_LSTM", None, 0, 3),
    ],
)  # fmt: skip
def test_the_first_plain_tensor_of_real_numbers_is_given_and_the_rest_are_constants(
    name: str, given: Any, place: int, outputs: int
) -> None:
    main = example_model(OPS[name]).main
    (operation,) = main.operations
    assert operation.type == OperationType[name] and len(main.outputs) == outputs
    if given is None:
        assert main.inputs == ()
    else:
        (first,) = main.inputs
        assert operation.inputs.index(first) == place
        assert (main.operands[first].dimensions, main.operands[first].type) == (given, OperandType.TENSOR_FLOAT32)
    others = {main.operands[i].lifetime for i in operation.inputs if i not in main.inputs}
    assert others <= {Lifetime.CONSTANT_COPY, Lifetime.CONSTANT_REFERENCE, Lifetime.NO_VALUE}


def test_real_numbers_are_lists_of_numbers() -> None:
    assert _floats([1.5]) and _floats([[1, 2]]) and _floats([1.0, 2])
    assert not (_floats([True]) or _floats(1.5) or _floats(2) or _floats(np.zeros(2)) or _floats(["a"]))

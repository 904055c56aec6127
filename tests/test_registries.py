"""What a test registers ends with it, whichever file it stands in and whichever runs after."""

from nnhal.base.codes import OperandType
from nnhal.base.custom_operators import CUSTOM_OPERATORS, register_custom_operator
from nnhal.base.extensions import EXTENSIONS, ExtensionType, register_extension
from nnhal.base.levels import V1_2
from nnhal.base.operands import is_tensor
from nnhal.drivers.reference import Reference
from nnhal.ops import OPS
from nnhal.ops.schema import Form, Op, T, arg, register
from nnhal.runtime import discovery
from tests.conftest import registries_as_they_were

F32 = OperandType.TENSOR_FLOAT32


def test_what_is_registered_meanwhile_is_gone_and_what_was_replaced_is_back() -> None:
    def record(name: str) -> Op:
        tensor = arg("input", T, "n")
        return Op(f"com.example.kept.{name}", {F32: V1_2}, (Form(tensor),), (tensor,), lambda a, x: x + x)

    first = record("TWICE")
    register(first)
    with registries_as_they_were():
        register(record("TWICE"), record("MEANWHILE"))
        assert OPS[first.name] is not first and "com.example.kept.MEANWHILE" in OPS
        register_custom_operator("Meanwhile", lambda task: None)
        device = Reference()
        device.name = "meanwhile"
        discovery.register(device)
        extension = register_extension("com.example.meanwhile", [ExtensionType("S", "<f4", tensor=False)])
        code = extension.type("S")
        assert not is_tensor(code)
        assert "Meanwhile" in CUSTOM_OPERATORS and "meanwhile" in discovery._registered
    assert OPS[first.name] is first and "com.example.kept.MEANWHILE" not in OPS
    assert "com.example.meanwhile" not in EXTENSIONS and is_tensor(code)  # as any that nobody registered
    assert "Meanwhile" not in CUSTOM_OPERATORS and "meanwhile" not in discovery._registered and "ADD" in OPS

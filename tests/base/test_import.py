"""What `import nnhal` loads."""

import subprocess
import sys

HEAVY = ("ai_edge_litert", "openvino", "click", "rich", "tflite", "flatbuffers", "PIL", "scipy")


def loaded(statement: str) -> str:
    program = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


def test_importing_loads_no_engine_and_no_command_line():
    assert loaded("import nnhal") == "[]"


def test_nor_does_using_the_builder_and_the_reference_device():
    build = "import nnhal; b = nnhal.Builder(); x = b.input((1,)); m = b.finish([x], [b.floor(x)]); nnhal.validate(m)"
    assert loaded(build) == "[]"

"""What `import nnhal` loads."""

import subprocess
import sys

from tests.execution import run_python

HEAVY = ("ai_edge_litert", "openvino", "click", "rich", "tflite", "flatbuffers", "PIL", "scipy")


def loaded(statement: str) -> str:
    program = f"{statement}; import sys; print([m for m in {HEAVY!r} if m in sys.modules])"
    return subprocess.check_output([sys.executable, "-c", program], text=True).strip()


def test_importing_loads_no_engine_and_no_command_line():
    assert loaded("import nnhal") == "[]"


def test_nor_does_using_the_builder_and_the_reference_device():
    build = "import nnhal; b = nnhal.Builder(); x = b.input((1,)); m = b.finish([x], [b.floor(x)]); nnhal.validate(m)"
    assert loaded(build) == "[]"


def test_a_program_loads_the_records_of_the_operations_that_it_uses():
    program = (
        "import sys, nnhal; b = nnhal.Builder(); x = b.input((1,)); m = b.finish([x], [b.floor(b.add(x, x))])\n"
        "from nnhal.ops.families import FAMILIES\n"
        "print([family for family in FAMILIES if f'nnhal.ops.{family}' in sys.modules], 'softmax' in dir(b))"
    )
    assert run_python(program).stdout == "['arithmetic', 'unary'] True\n"


def test_a_name_that_cannot_be_imported_for_lack_of_descriptors_says_so_and_can_be_had_later():
    program = """if True:
        import os, resource, nnhal
        nnhal.NnhalError
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        held = []
        try:
            while True: held.append(os.open("/dev/null", os.O_RDONLY))
        except OSError: pass
        try: nnhal.allocate
        except nnhal.NnhalError as error: said = f"{type(error).__name__}: {error}"
        for fd in held: os.close(fd)
        print(said); nnhal.allocate
    """
    assert run_python(program).stdout == (
        "ResourceExhausted: nnhal.allocate: cannot be imported: Too many open files\n"
    )

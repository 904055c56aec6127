"""Levels, codes, memory, log tags."""

import gc
import logging
import os
import re
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnhal.base import log
from nnhal.base.answers import driver_call
from nnhal.base.codes import ErrorStatus, OperandType, OperationType, operation_name, type_name
from nnhal.base.errors import Closed, DriverFailed, InvalidArgument, MissedDeadline
from nnhal.base.levels import FL6, FL7, V1_0, V1_2, V1_3, Level
from nnhal.base.memory import Memory


@pytest.mark.parametrize(("text", "level"), [("1.2", V1_2), ("V1_3", V1_3), ("FL6", FL6), ("7", FL7), (" v1.0 ", V1_0)])
def test_levels_are_read_from_text(text, level):
    assert Level.parse(text) == level


def test_a_level_that_does_not_exist_lists_the_others():
    with pytest.raises(ValueError, match=r"must be one of 1\.0, 1\.1, 1\.2, 1\.3, 5"):
        Level.parse("1.4")


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("ADD", 1),
        ("TRANSPOSE", 2),
        ("ABS", 3),
        ("RESIZE_NEAREST_NEIGHBOR", 3),
        ("RANK", 4),
        ("PACK", 6),
        ("REVERSE", 7),
    ],
)
def test_operations_exist_since_their_level(name, level):
    assert OperationType[name].since == level


def test_codes_without_a_name_are_still_told_apart():
    assert operation_name(OperationType.CONV_2D) == "CONV_2D"
    assert type_name(OperandType.TENSOR_BOOL8) == "TENSOR_BOOL8"
    assert type_name(77) == "unknown operand type 77"
    assert operation_name((3 << 16) + 5) == "extension operation 3:5"


def test_errors_carry_status_and_code():
    error = MissedDeadline("late", persistent=True)
    assert (error.status, error.code.name) == (ErrorStatus.MISSED_DEADLINE_PERSISTENT, "MISSED_DEADLINE_PERSISTENT")
    assert isinstance(error, TimeoutError)


@settings(max_examples=200)
@given(st.binary(min_size=1, max_size=5000))
def test_memory_holds_what_was_put_in(data):
    memory = Memory.from_array(np.frombuffer(data, np.uint8))
    assert memory.view(0, len(data)).tobytes() == data
    memory.close()


def test_memory_of_a_file_is_the_file(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(200)) * 50)
    memory = Memory.from_file(tmp_path / "f")
    assert memory.view(4097, 3).tolist() == [4097 % 200, 4098 % 200, 4099 % 200]
    assert not memory.bytes().flags.writeable


def test_memory_starts_anywhere_in_a_file(tmp_path):
    (tmp_path / "f").write_bytes(bytes(range(256)) * 40)
    with (tmp_path / "f").open("rb") as file:
        assert Memory.from_fd(file.fileno(), 4, 5001).bytes().tolist() == [(5001 + i) % 256 for i in range(4)]


@pytest.mark.parametrize(("offset", "length"), [(-1, 4), (0, 17), (16, 1), (2**63, 8)])
def test_bytes_outside_a_pool_are_refused(offset, length):
    with pytest.raises(InvalidArgument, match="must lie inside the pool's 16"):
        Memory.allocate(16).view(offset, length)


def test_a_region_outside_its_file_is_refused(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    with (tmp_path / "f").open("rb") as file, pytest.raises(InvalidArgument, match="must lie inside the file's 3"):
        Memory.from_fd(file.fileno(), 4)


def test_an_ashmem_pool_cannot_shrink():
    with pytest.raises(PermissionError):
        os.ftruncate((memory := Memory.allocate(100)).fd, 10)
    memory.close()


def test_memory_after_close_is_an_error_and_closing_twice_is_not():
    memory = Memory.allocate(8)
    memory.close()
    memory.close()
    with pytest.raises(Closed):
        memory.bytes()


@pytest.mark.parametrize(
    ("text", "tags"),
    [("model", ["model"]), ("model,driver:burst memory", ["model", "driver", "burst", "memory"]), ("", [])],
)
def test_log_tags_are_separated_by_space_comma_or_colon(text, tags):
    assert log.enable(text) == tags
    assert all(logging.getLogger(f"nnhal.{tag}").level == logging.DEBUG for tag in tags)


@pytest.mark.parametrize("word", ["all", "1"])
def test_all_log_tags_at_once(word):
    assert log.enable(word) == list(log.TAGS)


def test_each_tag_tells_of_its_part():
    import subprocess
    import sys

    program = """
import numpy as np, nnhal
from nnhal.zoo import maker
nnhal.load(maker.path("add4"))
b = nnhal.Builder("told")
x = b.input((1,))
m = b.finish([x], [b.floor(x)])
for device in ("reference", "litert"):
    nnhal.compile(m, devices=device)(np.ones(1, np.float32))
"""
    environment = {**os.environ, "NNHAL_VLOG": "all"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    told = ("model told: 1 operations", "compilation reference prepared", "cpuexe FLOOR #0 wrote", "manager driver")
    for tag in (*told, "memory "):
        assert f"nnhal.{tag}" in done.stderr, tag
    assert "nnhal.driver litert: made an interpreter" in done.stderr


def test_a_logger_is_of_a_tag_that_there_is():
    assert log.logger("model").name == "nnhal.model"
    with pytest.raises(ValueError, match=r"log tag is 'modle', must be one of model, compilation, "):
        log.logger("modle")


def test_what_is_logged_says_when_and_by_whom(monkeypatch, capsys):
    root = logging.getLogger("nnhal")
    monkeypatch.setattr(root, "handlers", [])
    log.enable("model")
    (handler,) = root.handlers
    line = handler.format(logging.LogRecord("nnhal.model", 10, "", 0, "told %d", (7,), None))
    assert re.fullmatch(r"\d{4}-\d\d-\d\d [\d:,]+ nnhal\.model told 7", line)
    log.enable("driver")
    assert root.handlers == [handler]


def test_an_unknown_log_tag_is_warned_of(caplog):
    assert log.enable("modle") == []
    assert "is 'modle', must be one of model" in caplog.text


def test_a_record_of_a_drivers_error_holds_nothing_of_what_was_at_work(caplog):
    """Handlers keep records for as long as they like; a frame may have descriptors."""

    class Held:
        pass

    def run():
        nonlocal seen
        held = Held()
        seen = weakref.ref(held)
        raise RuntimeError("of a driver")

    seen = None
    with caplog.at_level("DEBUG", "nnhal"):
        with pytest.raises(DriverFailed), driver_call("device d", "run()"):
            run()
        gc.collect()
        assert "of a driver" in caplog.text
        assert seen() is None

"""What a process has to itself, as the kernel counts it."""

import gc
import mmap
import os
import subprocess
import sys

import pytest

import nnhal
from nnhal.bench.process_memory import driver_memory, private_bytes
from tests.runtime.graphs import sums

MUCH = 64 << 20


@pytest.mark.nightly
def test_pages_that_were_written_count_in_bytes():
    gc.collect()
    with mmap.mmap(-1, MUCH, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as pages:  # none that was there before
        before = private_bytes()
        pages.write(b"1" * MUCH)
        gc.collect()
        grown = private_bytes() - before
    assert 0.9 * MUCH < grown < 1.2 * MUCH


def test_of_a_process_by_its_number_and_of_one_that_is_gone():
    assert private_bytes(os.getpid()) == pytest.approx(private_bytes(), rel=0.1)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert private_bytes(child.pid) > 0
    assert private_bytes(child.pid) is None


def test_of_the_drivers_of_a_model_those_in_processes_of_their_own():
    with nnhal.compile(sums(), devices="reference") as compiled:
        assert driver_memory(compiled) == {}
    with nnhal.compile(sums(), devices="reference", isolation="process") as compiled:
        found = driver_memory(compiled)
        assert list(found) == ["reference"] and found["reference"] > 1 << 20

"""A short run of the fuzzer of files, and that it sees what it is there to see; the long one is a command of its own."""

import os

from tests.faults import fuzz_files
from tests.faults.file_mutations import bases, mutated


def test_no_hostile_file_does_more_than_be_refused_or_run():
    found = fuzz_files.fuzz(200, lambda number: mutated(11, number))
    assert not found.found, found
    assert found.files == 200
    assert min(found.ends[end] for end in ("reference: ran", "litert: ran", "load: BadFile")) > 10, found.ends


def test_the_sound_files_that_it_starts_from_run_on_both_devices():
    found = fuzz_files.fuzz(len(bases()), bases().__getitem__)
    assert not found.found, found
    assert min(found.ends[f"{device}: ran"] for device in fuzz_files.DEVICES) > 0.9 * len(bases())  # inputs are random


def test_equal_seeds_make_equal_files():
    assert (
        [mutated(5, n) for n in range(20)] == [mutated(5, n) for n in range(20)] != [mutated(6, n) for n in range(20)]
    )


def test_it_sees_crashes_loops_foreign_exceptions_and_too_much_memory(monkeypatch):
    def dies(content: bytes) -> list[str]:
        number = int(content)
        if number == 3:
            os.abort()
        if number == 5:
            raise KeyError("not an error of nnhal's")
        if number == 7:
            while True:
                pass
        if number == 9:
            bytearray(2 << 30)
        if number == 10:
            raise fuzz_files.Replace
        return ["ran"]

    monkeypatch.setattr(fuzz_files, "examine", dies)
    monkeypatch.setattr(fuzz_files, "SECONDS", 0.3)
    found = fuzz_files.fuzz(20, lambda number: b"%d" % number)
    assert found.files == 20 and found.ends["ran"] == 15 and found.ends["late"] == 1
    numbers, reasons = zip(*found.found, strict=True)
    assert numbers == (3, 5, 7, 9)
    for reason, part in zip(reasons, ("SIGABRT", "KeyError", "SIGKILL after", "MemoryError"), strict=True):
        assert part in reason

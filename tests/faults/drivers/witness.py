"""A driver that tells about its own process, and misbehaves on command. On the reference kernels.

The reason of a verdict is what the process holds, as JSON: descriptors, mappings, resident bytes, threads, and the number
of executions that are inside. Options of
`prepare`: {"beyond": 8} writes so many bytes past the end of the first output, {"sleep": 0.5} makes each run take that long,
{"orphan": 1} has the process end while a child of it keeps its sockets open, {"say": text} fails with that text,
{"timing": 1} answers with times of numpy's types, {"scribble": 1} overwrites all shared memory that it can reach and fails,
{"sulky": 1} raises in `close`, {"tell": 1} fails to prepare, with the hint of threads as text, {"waits": 1} has each run
wait while the first number of the input is below 0, for as long as it is wanted. "sleep" may change between executions.
"""

import ctypes
import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nnhal.base.errors import OperationFailed
from nnhal.base.sealed import sealed
from nnhal.drivers.reference import Reference
from nnhal.hal import background
from nnhal.hal.cache.files import CacheContent, CacheFiles
from nnhal.hal.device import Device, Hints, Prepared, Verdict
from nnhal.hal.memory import MemoryUse
from nnhal.hal.request import Control, Request, Timing
from nnhal.model.graph import Model
from nnhal.model.stored import pack_device_view, unpack_device_view

CHILD_SECONDS = 120


_inside: list[None] = []  # executions


def held() -> dict[str, int]:
    """What this process holds."""
    with open("/proc/self/maps", "rb") as file:
        mappings = sum(b"memfd:" in line for line in file)  # stacks and arenas of threads come and go
    with open("/proc/self/statm", "rb") as file:
        resident = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    descriptors = len(os.listdir("/proc/self/fd")) - 1  # one is the listing's own
    return {
        "descriptors": descriptors,
        "mappings": mappings,
        "resident": resident,
        "inside": len(_inside),
        "threads": threading.active_count() - len(background._idle),  # which end by and by
    }


_JUNK = 1 << 16  # bytes


def _end_with_an_orphan() -> None:
    if os.fork() == 0:
        time.sleep(CHILD_SECONDS)
    os._exit(7)


def _scribble() -> None:
    """Overwrite every shared mapping that is writable, or that the kernel lets be made so.

    The kernel copies, from a file: where another thread unmaps the memory meanwhile, that is an error of the call.
    """
    libc, junk = ctypes.CDLL(None), os.memfd_create("junk")
    try:
        os.write(junk, b"A" * _JUNK)
        for line in Path("/proc/self/maps").read_text().splitlines():
            if "memfd:" in line and line.split()[1][3] == "s":
                start, end = (int(place, 16) for place in line.split()[0].split("-"))
                if (
                    libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(end - start), 3) == 0
                ):  # PROT_READ | PROT_WRITE
                    for place in range(start, end, _JUNK):
                        size = ctypes.c_size_t(min(_JUNK, end - place))
                        libc.pread(junk, ctypes.c_void_p(place), size, ctypes.c_long(0))
    finally:
        os.close(junk)


class WitnessPrepared(Prepared):
    """A prepared model that follows its options."""

    def __init__(self, inner: Prepared, options: dict[str, Any]) -> None:
        self._inner, self._options = inner, options
        self.changeable = () if "fixed" in options else ("sleep",)

    def run(self, request: Request, control: Control) -> Timing | None:
        _inside.append(None)
        try:
            return self._run(request, control)
        finally:
            _inside.pop()

    def _run(self, request: Request, control: Control) -> Timing | None:
        options = self._options
        time.sleep(options.get("sleep", 0))
        while "waits" in options and request.inputs[0].flat[0] < 0:  # type: ignore[union-attr]
            control.check()
            time.sleep(0.005)
        if "orphan" in options:
            _end_with_an_orphan()
        if "scribble" in options:
            _scribble()
            raise OperationFailed("the engine failed")
        if "say" in options:
            raise OperationFailed(options["say"])
        timing = self._inner.run(request, control)
        if "beyond" in options and request.rooms is not None and request.rooms[0] is not None:
            room = request.rooms[0]  # the memory that both processes share, which no driver is handed
            ctypes.memset(room.ctypes.data + room.nbytes, 0, options["beyond"])
        return Timing(np.int64(5), np.int64(7)) if "timing" in options else timing  # type: ignore[arg-type]

    def memory(self) -> MemoryUse:
        return self._inner.memory()

    def save(self, files: CacheContent) -> bool:
        files.model[0]["model"] = pack_device_view(self.model)
        files.model[0] |= {f"pool {n}": pool.bytes() for n, pool in enumerate(self.model.pools)}
        return True

    def reconfigure(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)

    def close(self) -> None:
        self._inner.close()
        if "sulky" in self._options:
            raise RuntimeError("the engine cannot be let go")


class Witness(Reference):
    """The device."""

    name = "witness"
    version = "1"

    def supports(self, model: Model) -> list[Verdict]:
        text = json.dumps(held())
        return [Verdict(v.ok, text) for v in super().supports(model)]

    def prepare(self, model: Model, hints: Hints) -> Prepared:
        if "tell" in hints.options:
            raise OperationFailed(f"threads {hints.threads}")
        return WitnessPrepared(super().prepare(model, hints), dict(hints.options))

    def number_of_cache_files(self) -> CacheFiles:
        return CacheFiles(model=1)

    def restore(self, files: CacheContent, token: bytes, hints: Hints) -> Prepared:
        sections = dict(files.model[0])
        model = unpack_device_view(sections.pop("model"), tuple(sealed(bytes(data)) for data in sections.values()))
        return self.prepare(model, hints)


def device() -> Device:
    """The entry point."""
    return Witness()

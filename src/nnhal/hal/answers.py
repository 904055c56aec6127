"""Checks the answers of drivers: each query of a device returns what the interface promises, or raises ContractBroken."""

import weakref
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from nnhal.base.answers import driver_call, safe_repr
from nnhal.base.codes import DeviceStatus, type_name
from nnhal.base.errors import ContractBroken, InvalidArgument
from nnhal.base.levels import V1_2
from nnhal.base.time import is_number
from nnhal.hal.background import ExecutionInfo, FencedExecution
from nnhal.hal.cache.files import MOST_FILES, CacheFiles
from nnhal.hal.device import (
    EXACT,
    FAST,
    MOST,
    NUMERICS,
    Capabilities,
    Device,
    Performance,
    Prepared,
    identity_of,
    where_of,
)
from nnhal.hal.fence import Fence
from nnhal.hal.memory import MOST_BYTES, Buffer, BufferDesc, BufferRole, MemoryUse, merge
from nnhal.hal.prepared import driver_roles
from nnhal.hal.request import Control, Request, Timing, checked_timing


def can_be_exact(device: Device) -> bool:
    """Return whether a device declares exact numerics.

    Args:
        device: The device.
    """
    return EXACT in identity_of(device).numerics


def wants_exact(options: Mapping[str, Any], name: str) -> bool:
    """Return whether a driver's options request exact numerics.

    Args:
        options: The options.
        name: The name of the device, for messages.

    Raises:
        InvalidArgument: The option has another value than "fast" or "exact".
    """
    found = options.get(NUMERICS, FAST)
    if found not in (FAST, EXACT):
        raise InvalidArgument(f"{name}: option {NUMERICS} is {safe_repr(found)}, must be {FAST} or {EXACT}")
    return bool(found == EXACT)


def driver_capabilities(device: Device) -> Capabilities:
    """Return the performance that a device declares, verified.

    Args:
        device: The device.

    Raises:
        ContractBroken: The answer is not a `Capabilities`.
        InvalidArgument: A figure is not a positive number; the message names it.
    """
    with driver_call(where_of(device), "capabilities()"):
        stated = device.capabilities()
        if not isinstance(stated, Capabilities):
            raise ContractBroken(f"capabilities() gave {safe_repr(stated)}, must be Capabilities")
        return checked_capabilities(stated)


def checked_capabilities(stated: Capabilities) -> Capabilities:
    """Return the performance in plain types.

    Args:
        stated: The declared performance.

    Raises:
        InvalidArgument: A figure is not a positive number.
    """
    table: Any = stated.operands
    entries = list(islice(table.items(), MOST + 1)) if isinstance(table, Mapping) else None
    if entries is None or len(entries) > MOST:
        raise InvalidArgument(
            f"performance of operands is {safe_repr(table)}, must be a mapping of at most {MOST} types"
        )
    for code, _ in entries:
        if not isinstance(code, int) or isinstance(code, bool) or not 0 <= code < 1 << 32:
            raise InvalidArgument(f"performance of {safe_repr(code)} is stated, must be of operand types")
    return Capabilities(
        {int(code): checked_performance(performance, type_name(code)) for code, performance in entries},
        checked_performance(stated.relaxed_scalar, "relaxed scalars"),
        checked_performance(stated.relaxed_tensor, "relaxed tensors"),
        checked_performance(stated.if_performance, "IF"),
        checked_performance(stated.while_performance, "WHILE"),
    )


def checked_performance(performance: Any, what: str) -> Performance:
    """Return one figure pair in plain types.

    Args:
        performance: The declared figures.
        what: Their name in messages.

    Raises:
        InvalidArgument: A figure is not a positive number.
    """
    if not isinstance(performance, Performance):
        raise InvalidArgument(f"performance of {what} is {safe_repr(performance)}, must be a Performance")
    for value in performance:
        if not is_number(value) or not value > 0:
            raise InvalidArgument(f"performance of {what} is {safe_repr(value)}, must be a number above 0")
    return Performance(*map(float, performance))


def checked_status(device: Device) -> DeviceStatus:
    """Return the device's status; ContractBroken if the answer is not a `DeviceStatus`."""
    with driver_call(where_of(device), "status()"):
        status = device.status()
        if not isinstance(status, DeviceStatus):
            raise ContractBroken(f"status() gave {safe_repr(status)}, must be a DeviceStatus")
        return status


def cache_files_by(device: Device) -> CacheFiles:
    """Return how many cache files of each kind a device uses; none below HAL 1.2."""
    if identity_of(device).level < V1_2:
        return CacheFiles()
    with driver_call(where_of(device), "number_of_cache_files()"):
        numbers = device.number_of_cache_files()
        fits = isinstance(numbers, tuple) and len(numbers) == len(CacheFiles._fields)
        if not fits or not all(type(n) is int and 0 <= n <= MOST_FILES for n in numbers):
            raise ContractBroken(
                f"number_of_cache_files() gave {safe_repr(numbers)}, must be two numbers of 0 to {MOST_FILES}"
            )
        return CacheFiles(*numbers)


def checked_memory_use(prepared: Prepared, where: str) -> MemoryUse:
    """Return the memory use of a prepared model; ContractBroken for impossible figures."""
    with driver_call(where, "memory()"):
        use = prepared.memory()
        if not isinstance(use, MemoryUse):
            raise ContractBroken(f"memory() gave {safe_repr(use)}, must give a MemoryUse")
        for what, size in zip(use._fields, use, strict=True):
            if size is not None and (type(size) is not int or not 0 <= size <= MOST_BYTES):
                raise ContractBroken(f"memory() gave {what} = {safe_repr(size)}, must be bytes as an int, or None")
        return use


def allocated_by(device: Device, desc: BufferDesc, roles: Sequence[BufferRole]) -> Buffer:
    """Allocate a device buffer; ContractBroken if the answer is not a new buffer for these roles."""
    with driver_call(where_of(device), "allocate()"):
        buffer = device.allocate(desc, driver_roles(roles))
        if not isinstance(buffer, Buffer):
            raise ContractBroken(f"allocate() gave {safe_repr(buffer)}, must give a Buffer")
        wanted = merge(desc, roles)
        if getattr(buffer, "facts", None) != wanted:
            raise ContractBroken("allocate() gave a Buffer for something else, must be for what it was asked for")
        require_new(buffer, "allocate() gave a Buffer")
        buffer.add_roles(roles)
        return buffer


def fenced_by(
    prepared: Prepared,
    where: str,
    request: Request,
    control: Control,
    wait_for: Sequence[Fence],
    after: int | None = None,
) -> FencedExecution:
    """Launch a fenced execution. If the answer is invalid, raise ContractBroken and abandon the request."""
    try:
        with driver_call(where, "execute_fenced()"):
            launched = prepared.execute_fenced(request, control, wait_for, after)
            if not isinstance(launched, FencedExecution):
                raise ContractBroken(f"execute_fenced() gave {safe_repr(launched)}, must give a FencedExecution")
            if not isinstance(launched.fence, Fence | None):
                raise ContractBroken(
                    f"execute_fenced() gave fence {safe_repr(launched.fence)}, must be a Fence or None"
                )
            return launched
    except BaseException:
        request.abandon()
        raise


def checked_info(execution: FencedExecution, where: str, until: int | None = None) -> ExecutionInfo:
    """Return the verified times of a fenced execution, or raise its error.

    until: as in `FencedExecution.info_until`.
    """
    with driver_call(where, "get_execution_info()"):
        info = execution.info_until(until)
        if not isinstance(info, ExecutionInfo):
            raise ContractBroken(f"get_execution_info() gave {safe_repr(info)}, must give an ExecutionInfo")
        return ExecutionInfo(*(checked_timing(timing, where) or Timing() for timing in info))


_given: dict[int, weakref.ref[object]] = {}  # by id, because drivers define equality


def require_new(item: object, what: str) -> None:
    """Raise ContractBroken for an object that a driver gave before."""
    key = id(item)
    own = weakref.ref(item, lambda _: _given.pop(key, None))
    known = _given.setdefault(key, own)
    if known is not own and known() is item:
        raise ContractBroken(f"{what} that it gave before, must give a new one")

"""Results of verifying drivers' kernel variants on this CPU, and the user's record of them.

An engine may have a fast variant of an operation that is wrong on some CPUs. A driver with several variants declares
them in `Device.proofs`. `nnhal verify` compares each with the definition, and records which are correct.

The record is one private file for all drivers, in the user's state folder. Each result has a keyed hash of the driver's
version and code, nnhal's version and the CPU. Damaged or other results are ignored. A sandboxed process reads the
record before it enters its sandbox, and cannot write it.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from nnhal.base.answers import safe_repr
from nnhal.base.descriptors import Owner
from nnhal.base.errors import ContractBroken, OperationFailed
from nnhal.base.log import logger
from nnhal.base.private import file_lock, private_folder
from nnhal.hal.cache.state import StateFile, state_folder
from nnhal.hal.choices import Proved, VariantChoice
from nnhal.hal.device import Device

FILE, KEY = "proofs", b"forms"
MOST = 4096  # variants of one device
_log = logger("driver")


Findings = Mapping[tuple[str, int], Proved]


def identity_here(device: Device, version: str) -> bytes:
    """Return the identity that results are for. version: of the driver and its engine."""
    from nnhal.hal.cache.keeper import identity

    return identity(device.name, version, device.code_identity, processor=True)


def choices_of(device: Device) -> Sequence[VariantChoice]:
    """Return the variants of a device."""
    proofs = device.cached_as.proofs
    if proofs is None:
        return ()
    choices = proofs.choices()
    if (
        not isinstance(choices, Sequence)
        or len(choices) > MOST
        or not all(isinstance(c, VariantChoice) for c in choices)
    ):
        raise ContractBroken(
            f"device {device.name}: choices() gave {safe_repr(choices)}, must be at most {MOST} VariantChoice"
        )
    return choices


def verified_variants(device: Device, version: str) -> dict[tuple[str, int], Proved]:
    """Return the recorded results for a device that is being created. version: of its driver and engine."""
    try:
        file = _to_read()
    except OSError as error:
        _log.warning("device %s: cannot read verification results: %s", device.name, error.strerror or error)
        return {}
    return {} if file is None else _found_in(file, identity_here(device, version))


def _found_in(file: StateFile, identity: bytes) -> dict[tuple[str, int], Proved]:
    from nnhal.hal.blobcache import BlobCache

    data = BlobCache(file, identity).get(KEY)
    return {} if data is None else _understood(data)


@contextmanager
def _recording() -> Iterator[StateFile]:
    """Open the record and lock it: results of concurrent verifications of other operations are both kept.

    OperationFailed if that, or what the caller does with the file, fails.
    """
    from nnhal.hal.blobcache import open_state_file

    folder = Owner()
    try:
        with file_lock(private_folder(state_folder(), folder), "proofs.lock"):
            yield open_state_file(FILE)
    except OSError as error:
        where = f" {error.filename}:" if error.filename else ""
        raise OperationFailed(f"cannot record verification results:{where} {error.strerror or error}") from None
    finally:
        folder.close()


def require_writable() -> None:
    """Raise OperationFailed if no result can be recorded."""
    with _recording() as file:
        file.append(b"")


def store_proofs(identity: bytes, found: Findings) -> None:
    """Add results to the record, in one write. OperationFailed if that fails."""
    import json

    from nnhal.hal.blobcache import BlobCache

    with _recording() as file:
        rows = [[*key, *proved] for key, proved in {**_found_in(file, identity), **found}.items()]
        kept = BlobCache(file, identity).put(KEY, json.dumps(rows).encode())
    if not kept:
        raise OperationFailed("cannot record verification results: the file cannot be written")


_only: list[StateFile | None] = []  # of a process that opens no more files; None without a record


def open_proofs() -> None:
    """Open the record for reading, before this process enters its sandbox. Without it, nothing counts as verified."""
    from nnhal.hal.cache.keeper import features

    features()
    try:
        _only.append(_to_read())
    except OSError:
        _only.append(None)


def _to_read() -> StateFile | None:
    """Return the open record; None if there is none."""
    return _only[0] if _only else StateFile.to_read(FILE)


def _understood(data: bytes) -> dict[tuple[str, int], Proved]:
    """Parse the results of a record, which another version of this module may have written."""
    import json

    try:
        return {(operation, kind): Proved(form, why) for operation, kind, form, why in json.loads(data)}
    except (ValueError, TypeError):
        return {}

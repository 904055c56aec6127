"""What was proved of drivers' ways to compute, on this processor, and the user's record of it.

An engine may have a fast form of an operation that is wrong on some processors. A driver that knows several forms says so by
`Device.proofs`; somebody who judges (`nnhal verify`) runs each against the definition and remembers which is right.

The record is one file for all drivers, beside those of what they cached: of the user alone, each proof with a keyed hash of
the driver's version and code, of nnhal's and of the processor. What is damaged, or of anything else, is not found. A process
that is going to be confined reads it ahead and cannot write it.
"""

from collections.abc import Mapping, Sequence

from nnhal.base.answers import shown
from nnhal.base.descriptors import Owner
from nnhal.base.errors import ContractBroken, OperationFailed
from nnhal.base.log import logger
from nnhal.base.private import alone, private_folder
from nnhal.hal.cache.state import StateFile, state_folder
from nnhal.hal.choices import FormChoice, Proved
from nnhal.hal.device import Device

FILE, KEY = "proofs", b"forms"
MOST = 4096  # choices of one device
_log = logger("driver")


Findings = Mapping[tuple[str, int], Proved]


def identity_here(device: Device, version: str) -> bytes:
    """What a proof of a driver is of. version: the driver's and its engine's."""
    from nnhal.hal.cache.keeper import identity

    return identity(device.name, version, device.code_identity, processor=True)


def choices_of(device: Device) -> Sequence[FormChoice]:
    """What a device says that can be proved of it."""
    proofs = device.cached_as.proofs
    if proofs is None:
        return ()
    choices = proofs.choices()
    if not isinstance(choices, Sequence) or len(choices) > MOST or not all(isinstance(c, FormChoice) for c in choices):
        raise ContractBroken(f"device {device.name}: proofs gave {shown(choices)}, must be at most {MOST} FormChoice")
    return choices


def recall(identity: bytes) -> dict[tuple[str, int], Proved]:
    """What was remembered of this driver on this processor; nothing where there is no record that is whole."""
    try:
        file = _to_read()
        return {} if file is None else _found_in(file, identity)
    except OSError as error:
        _log.warning("no proof is found: %s", error.strerror or error)
        return {}


def proved_of(device: Device, version: str) -> dict[tuple[str, int], Proved]:
    """What was remembered of a device that is being made; version: of its driver and engine."""
    try:
        file = _to_read()
    except OSError as error:
        _log.warning("nothing is proved of device %s: %s", device.name, error.strerror or error)
        return {}
    return {} if file is None else _found_in(file, identity_here(device, version))


def _found_in(file: StateFile, identity: bytes) -> dict[tuple[str, int], Proved]:
    from nnhal.hal.blobcache import BlobCache

    data = BlobCache(file, identity).get(KEY)
    return {} if data is None else _understood(data)


def remember(identity: bytes, found: Findings) -> None:
    """Keep what was proved beside what was before, all of it in one write. OperationFailed where that cannot be."""
    import json

    from nnhal.hal.blobcache import BlobCache, opened

    folder = Owner()
    try:
        with alone(
            private_folder(state_folder(), folder), "proofs.lock"
        ):  # of two that prove other operations both stay
            file = opened(FILE)
            rows = [[*key, *proved] for key, proved in {**_found_in(file, identity), **found}.items()]
            kept = BlobCache(file, identity).put(KEY, json.dumps(rows).encode())
    except OSError as error:
        where = f" {error.filename}:" if error.filename else ""
        raise OperationFailed(f"what was proved is not kept:{where} {error.strerror or error}") from None
    finally:
        folder.close()
    if not kept:
        raise OperationFailed("what was proved is not kept: it cannot be written")


_only: list[StateFile | None] = []  # of a process that opens no files any more; None for none


def open_ahead() -> None:
    """Open the record, to read, for a process that will be confined. Without one nothing is proved in it."""
    from nnhal.hal.cache.keeper import features

    features()
    try:
        _only.append(_to_read())
    except OSError:
        _only.append(None)


def _to_read() -> StateFile | None:
    """The record, open; None where there is none."""
    return _only[0] if _only else StateFile.to_read(FILE)


def _understood(data: bytes) -> dict[tuple[str, int], Proved]:
    """The findings in a value that is what was written, perhaps by another form of this module."""
    import json

    try:
        return {(operation, kind): Proved(form, why) for operation, kind, form, why in json.loads(data)}
    except (ValueError, TypeError):
        return {}

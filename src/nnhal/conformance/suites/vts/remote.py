"""A driver's process for one case alone, without the restarts of `ReconnectingDevice`."""

from collections.abc import Iterator
from contextlib import contextmanager

from nnhal.conformance.suites.vts.promise import Probe
from nnhal.conformance.validate.trial import PLAIN
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemotePrepared
from nnhal.ipc.client.process import start
from nnhal.model.graph import Model
from nnhal.runtime import discovery


@contextmanager
def opened(probe: Probe) -> Iterator[RemoteDevice]:
    """Start the driver under test in a new process; it ends with the context."""
    name, run = probe.device.name, probe.suite_run
    with probe.stages.enter("start"):
        session = start(discovery.origin_of(name), level=run.level)
    try:
        yield RemoteDevice(session)
    finally:
        session.close()


def prepared_on(device: RemoteDevice, model: Model) -> RemotePrepared:
    """Prepare a model in such a process."""
    prepared = device.prepare(model, PLAIN)
    assert isinstance(prepared, RemotePrepared)
    return prepared

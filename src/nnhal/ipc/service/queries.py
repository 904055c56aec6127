"""Answers questions about a driver, and about what the clients of its process hold."""

from nnhal.base.errors import bounded_text
from nnhal.base.levels import Level
from nnhal.hal.answers import cache_files_by, checked_status, driver_capabilities
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import FAST, NUMERICS_PREFIX, Device, cache_record_identity, code_by, identity_of
from nnhal.ipc.protocol import wire
from nnhal.ipc.protocol.convert import capabilities_to_wire, model_from_wire
from nnhal.ipc.service.binding import Answer
from nnhal.ipc.service.pools import ServicePools
from nnhal.ipc.service.quota import ClientShare
from nnhal.ipc.transport.channel import Descriptors
from nnhal.model.validate import validate


class QueryCalls:
    """The questions of one client. They change nothing, and make nothing that the client holds."""

    def __init__(self, device: Device, pools: ServicePools, share: ClientShare) -> None:
        self._device, self._own = device, identity_of(device)
        self._pools, self._share = pools, share

    def capabilities(self, call: wire.GetCapabilities, _: Descriptors) -> Answer:
        return capabilities_to_wire(driver_capabilities(self._device), Level(call.form)), ()

    def status(self, _: wire.GetStatus, __: Descriptors) -> Answer:
        return wire.TextReply(int(checked_status(self._device))), ()

    def version(self, _: wire.GetVersionString, __: Descriptors) -> Answer:
        return wire.TextReply(self._own.version), ()

    def type(self, _: wire.GetType, __: Descriptors) -> Answer:
        return wire.TextReply(int(self._own.type)), ()

    def relaxations(self, _: wire.GetRelaxations, __: Descriptors) -> Answer:
        more = (NUMERICS_PREFIX + each for each in self._own.numerics if each != FAST)
        return wire.NamesReply((*self._own.relaxations, *more)), ()

    def extensions(self, _: wire.GetSupportedExtensions, __: Descriptors) -> Answer:
        return wire.NamesReply(self._own.extensions), ()

    def supported(self, call: wire.GetSupportedOperations, fds: Descriptors) -> Answer:
        model = model_from_wire(call.model, lambda pool: self._pools.accept(pool, fds, written=False))
        validate(model)
        verdicts = tuple((v.ok, v.reason) for v in query_verdicts(self._device, model, as_is=True))
        return wire.Verdicts(verdicts), ()

    def cache_files(self, _: wire.GetNumberOfCacheFiles, __: Descriptors) -> Answer:
        counts = cache_files_by(self._device)
        return wire.CacheFileCounts(
            *counts, cache_record_identity(self._device)[1], bounded_text(code_by(self._device).unknown)
        ), ()

    def usage(self, _: wire.GetUsage, __: Descriptors) -> Answer:
        """Return the quotas and the holdings of all clients."""
        quotas = self._share.quotas
        rows = quotas.table.rows
        limits = tuple(wire.Quota(row.name, row.most, row.own, row.common) for row in rows.values())
        clients = tuple(wire.Usages(pid, tuple(used[name] for name in rows)) for pid, used in quotas.usage())
        return wire.Usage(quotas.table.clients, limits, clients), ()

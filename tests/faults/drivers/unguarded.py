"""A driver of HAL 1.3 that looks at no request: it doubles what it is given, and says how often it has been asked."""
# ruff: noqa: N801, N802 - names are the HAL's

from nnhal.base.codes import DeviceType, ErrorStatus
from nnhal.hal.device import Capabilities
from nnhal.hal.hidl.arguments import HalTiming


class PreparedModel:
    asked = 0

    def executeSynchronously_1_3(self, request, *limits):
        self.asked += 1
        x, y = ([p for p in places if not p.has_no_value] for places in (request.inputs, request.outputs))
        given, room = (request.pools[p.pool].view(p.offset, p.length, "<f4", (p.length // 4,)) for p in (x[0], y[0]))
        room[:] = 2 * given
        room[0] = self.asked
        return ErrorStatus.NONE, (), HalTiming()


class device:
    def getVersionString(self):
        return ErrorStatus.NONE, "1"

    def getType(self):
        return ErrorStatus.NONE, DeviceType.OTHER

    def getSupportedExtensions(self):
        return ErrorStatus.NONE, ()

    def getCapabilities_1_3(self):
        return ErrorStatus.NONE, Capabilities.uniform(0.5)

    def getSupportedOperations_1_3(self, model):
        return ErrorStatus.NONE, [True] * len(model.main.operations)

    def prepareModel_1_3(self, model, *arguments):
        arguments[-1].notify_1_3(ErrorStatus.NONE, PreparedModel())
        return ErrorStatus.NONE

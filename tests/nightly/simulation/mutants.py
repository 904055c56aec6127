"""Faults that a hand could have made in the border, each of which the simulation must find: module, text, instead."""

from tests.nightly.simulation.stage import Changes

_SESSION, _BURST = "nnhal.ipc.client.session", "nnhal.ipc.client.burst"
_CHANNELS, _PENDING = "nnhal.ipc.client.channels", "nnhal.ipc.client.pending"
_HOUSEKEEPER = "nnhal.ipc.client.housekeeper"
_PREPARED, _CHANNEL = "nnhal.ipc.client.prepared", "nnhal.ipc.transport.channel"
_CONNECTION = "nnhal.ipc.service.connection"
_NATIVE = "tests.nightly.simulation.native"  # the model, as the code is C
_EXPORTS, _SCOPE, _SERVICE_BURST = "nnhal.ipc.service.exports", "nnhal.ipc.service.scope", "nnhal.ipc.service.burst"

MUTANTS: dict[str, Changes] = {
    "a lane is given up and stays free": [
        (_SESSION, "            if channel.in_doubt:\n", "            if False:\n"),
    ],
    "a lane that is given up is not hung up": [
        (_CHANNELS, "            lane.channel.hang_up()\n", "            pass\n"),
    ],
    "a notification of a call that failed is waited for": [
        (
            _SESSION,
            "                self.notifications.pending.pop(message.object, None)\n            raise",
            "                pass\n            raise",
        ),
    ],
    "what a call that was given up made is kept": [
        (_CHANNELS, "                if lane.made:", "                if False:"),
    ],
    "nobody looks whether what goes on is wanted": [
        (_HOUSEKEEPER, "                if endings.wishes:\n", "                if False:\n"),
    ],
    "what was released while it was made is held": [
        (
            _EXPORTS,
            "            if found is not None:\n                self._objects[number] = item, partial(",
            "            if found := found or (None, lambda: None):\n                self._objects[number] = item, partial(",
        ),
    ],
    "the death of a session wakes nobody who waits for a notification": [
        (_PENDING, "                pending.set(self._peer.dead)\n", "                pass\n"),
    ],
    "nobody waits for the end of a driver that writes to the caller": [
        (_SESSION, "                if direct:\n", "                if False:\n"),
    ],
    "an execution with a deadline writes to the caller's pool": [
        (_PREPARED, "self.frames.take(request, apart or control.bounded)", "self.frames.take(request, False)"),
    ],
    "a frame is free while its execution runs": [
        (_PREPARED, "        session = self.session\n", "        session = self.session; home.append(frame)\n"),
    ],
    "a burst stays taken after an interrupt": [
        (
            _BURST,
            "            self._busy.release()\n",
            '            getattr(__import__("sys").exc_info()[0], "__name__", "") == "Interrupt" or self._busy.release()\n',
        ),
    ],
    "an interrupted burst goes on": [
        (
            _BURST,
            "            finally:  # interrupted again\n                self._end()\n",
            "            finally:\n                pass\n",
        ),
    ],
    "a model is closed while executions use it": [
        (_EXPORTS, "            if self._users or self._closed:\n", "            if self._closed:\n"),
    ],
    "a model is closed twice": [
        (_EXPORTS, "            if self._users or self._closed:\n", "            if self._users:\n"),
    ],
    "what was made for a number that is gone is not ended": [
        (_EXPORTS, '        self._ends(end)\n        raise Closed(f"object', '\n        raise Closed(f"object'),
    ],
    "an answer is taken whatever its number": [
        (_CHANNEL, "        return self.lane.awaited != 0\n", "        return False\n"),
        (_NATIVE, "        if self.awaited:\n            return real.CORRUPT\n", "\n\n"),
        (_NATIVE, "            if number != self.awaited or data is None:", "            if data is None:"),
    ],
    "what ends after the thread that ends is forgotten": [
        (_SCOPE, "            if self._finished:\n                return False\n", "\n\n"),
    ],
    "a lane that ended can still be cancelled": [
        (_CONNECTION, "            self.wanted.ended(number)\n            self._lanes", "\n            self._lanes"),
    ],
    "descriptors that were sent stay open": [
        (
            _CONNECTION,
            "                    Owner(*given).close()\n                del data, reply\n",
            "                    pass\n                del data, reply\n",
        ),
    ],
    "work that could not be begun is done all the same": [
        (
            _SCOPE,
            "                self._start()\n            self._long += takes_long\n            self._put(entry)\n",
            "                self._put(entry)\n                self._start()\n            self._long += takes_long\n",
        ),
    ],
    "the end of a burst is not told": [
        (_SERVICE_BURST, "            queues.drop()\n            self._finish()\n", "            queues.drop()\n\n"),
    ],
    "an execution in a burst ends and the next takes its result": [
        (
            _SERVICE_BURST,
            "            if packet is not self._packet or self._call is None:\n",
            "            if self._call is None:\n",
        ),
    ],
    "an execution that nobody wants is not told": [
        (
            _SCOPE,
            "        if event is not None:\n            event.set()\n",
            "        if event is not None:\n            pass\n",
        ),
    ],
}

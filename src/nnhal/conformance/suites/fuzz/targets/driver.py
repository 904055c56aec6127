"""The driver under test in a sandboxed process: changed models, requests, arguments, burst packets and cache files.

Each ends in a result or a documented error. Afterwards the driver executes valid requests with right results.
"""

import os
import random
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from nnhal.base.errors import DeadObject, DriverFailed, InvalidModel, NnhalError
from nnhal.base.levels import V1_2, V1_3
from nnhal.base.operands import Array
from nnhal.base.records import replace
from nnhal.conformance.cache_files import empty_files, is_written, restored_from
from nnhal.conformance.differential import Outputs, arrays_of, compare_outputs, model_of
from nnhal.conformance.draw import Call, cells, draw
from nnhal.conformance.probe import probe
from nnhal.conformance.suites.fuzz.inputs import NUMBERS, Choices, changed, damaged
from nnhal.conformance.suites.fuzz.target import DriverEnded, FuzzTarget, WrongAnswer
from nnhal.conformance.suites.fuzz.targets.importers import driver_options, tested
from nnhal.conformance.suites.fuzz.targets.models import drawn, mutated
from nnhal.conformance.suites.fuzz.targets.wire import changed_packet
from nnhal.conformance.suites.suite import NotApplicable, NotSupported, SuiteRun
from nnhal.conformance.suites.vts.packets import ENDED, PacketBurst, is_execution, problem_of
from nnhal.conformance.suites.vts.requests import NOT_NAMED, wire_arguments
from nnhal.conformance.validate.trial import PLAIN, by_reference, copies
from nnhal.conformance.verdict import outcome_of_text
from nnhal.hal.answers import cache_files_by
from nnhal.hal.cache.files import CacheFiles
from nnhal.hal.chain import PreparedChain, checked_prepared
from nnhal.hal.claims import query_verdicts
from nnhal.hal.device import Prepared, where_of
from nnhal.hal.lowering import refusals
from nnhal.hal.request import UNLIMITED, Argument, Request, Signature
from nnhal.ipc import transport
from nnhal.ipc.client.device import RemoteDevice
from nnhal.ipc.client.prepared import RemoteBinding, RemotePrepared
from nnhal.ipc.client.process import start
from nnhal.ipc.protocol import wire
from nnhal.ipc.transport.packets import pack, unpack
from nnhal.model.graph import Model
from nnhal.model.validate import validate
from nnhal.ops import OPS
from nnhal.ops.schema import F32
from nnhal.runtime import discovery

CALLS = 8  # supported calls of different operations, for requests, packets and cache files
DRAWS = 16  # calls of each type and signature of an operation whose example is supported
CONSTANTS = 32  # elements of a call's constants, so that its cache files hold them
SUPPORTED = 0.7  # the share of changed models that begin with a supported operation


class _KnownCall(NamedTuple):
    """A supported call with its right results."""

    call: Call
    model: Model
    wanted: Outputs


class DriverTarget(FuzzTarget):
    """The choices of one thing that a client may send."""

    name = "driver"
    patience = 0.0
    seconds = 20.0  # of this process: the driver's is another one

    def __init__(self, run: SuiteRun) -> None:
        try:
            transport.require()
        except NnhalError as error:
            raise NotApplicable(f"drivers cannot run in another process here: {error}") from None
        self._name, self._level = tested(run), run.level
        self._hints = replace(PLAIN, options=driver_options(run, self._name))
        self._connect()
        self._names = {name for name, verdict in probe(self._remote).items() if verdict.ok}  # by their examples
        self._known = list(self._supported(random.Random(f"{run.seed} driver")))
        if not self._known:
            raise NotSupported("the driver supports none of the drawn calls of any operation")
        self._names |= {known.call.cell.op.name for known in self._known}
        self._cells = [cell for cell in cells() if cell.op.name in self._names]
        self._saved = self._saved_files()

    def seeds(self) -> Sequence[bytes]:
        """Return random choices."""
        rng = random.Random(0)
        return [rng.randbytes(128) for _ in range(32)]

    def mutate(self, rng: random.Random, data: bytes, other: bytes) -> bytes:
        """Return other random choices: the driver's coverage is not known."""
        return rng.randbytes(128)

    def run(self, data: bytes) -> str:
        """Send one thing, then look whether the driver still gives right results."""
        choices = Choices(data)
        kind = choices.choice(("model", "model", "request", "request", "values", "packet", "arguments", "cache"))
        try:
            ended = getattr(self, f"_{kind}")(choices)
            self._require_alive(choices.randrange(len(self._known)), f"after a changed {kind}")
        except DeadObject as error:
            raise DriverEnded(f"a changed {kind}: {outcome_of_text(str(error))}") from error
        return f"{kind}: {ended}"

    # ------------------------------------------------------------------------------------------------ the driver's process

    def _connect(self) -> None:
        """Start the driver's process."""
        if hasattr(self, "_remote"):
            self.close()
        self._remote = RemoteDevice(start(discovery.origin_of(self._name), level=self._level))
        self._prepared: dict[int, PreparedChain] = {}
        self._bursts: dict[int, PacketBurst] = {}
        self._latest = 0  # the greatest number of a binding

    def recover(self) -> None:
        """Start the driver's process again."""
        self._connect()

    def close(self) -> None:
        """End the driver's process."""
        self._remote.close()

    def _supported(self, rng: random.Random) -> Iterator[_KnownCall]:
        """Yield supported calls of different operations, whose results are right.

        Those in `_names` come first, and before them one with constants: a change of its cache files shows.
        """
        names = sorted({cell.op.name for cell in cells()})
        rng.shuffle(names)
        ordered = sorted(names, key=lambda name: name not in self._names)
        known = (self._known_call(name, rng) for name in ordered)
        layers_first = sorted(self._names, key=lambda name: (OPS[name].weights is None, name))
        constant = (self._known_call(name, rng, CONSTANTS) for name in layers_first)
        found: set[str] = set()
        for call in chain(islice(filter(None, constant), 1), filter(None, known)):
            if call.call.cell.op.name not in found:
                found.add(call.call.cell.op.name)
                yield call
            if len(found) == CALLS:
                return

    def _known_call(self, name: str, rng: random.Random, constants: int = 0) -> _KnownCall | None:
        """Return a supported call of an operation, None if none of those that are drawn is supported.

        constants: the least number of constant elements of float32.
        """
        ordinary = [cell for cell in cells([name]) if cell.values == "ordinary" and not cell.op.random]
        ordinary = [cell for cell in ordinary if not constants or cell.kind == F32]
        rng.shuffle(ordinary)
        for cell in ordinary * (DRAWS if name in self._names else 1):
            call = draw(cell, np.random.default_rng(rng.getrandbits(32)))
            model, arrays = model_of(call), arrays_of(call)
            if (
                not arrays
                or call.constants < constants
                or not Signature.of(model).closed
                or not all(x.size for x in arrays)
            ):
                continue
            try:
                lacking = any(refusals(model, self._remote.level))  # of its HAL version
                if lacking or not all(verdict.ok for verdict in query_verdicts(self._remote, model)):
                    continue
                wanted = by_reference(model, arrays)
            except DeadObject:
                raise
            except NnhalError:
                continue
            if all(w is not None and w.size for w in wanted):
                known = _KnownCall(call, model, wanted)
                prepared = checked_prepared(self._remote, model, self._hints)
                self._require_right(known, prepared, "before any changed input")
                return known
        return None

    def _of(self, number: int) -> RemotePrepared:
        """Return the prepared model of a known call."""
        if number not in self._prepared:
            self._prepared[number] = checked_prepared(self._remote, self._known[number].model, self._hints)
        found = self._prepared[number]
        assert isinstance(found.inner, RemotePrepared)
        return found.inner

    def _require_alive(self, number: int, when: str) -> None:
        self._require_right(self._known[number], self._of(number), when)

    def _require_right(self, known: _KnownCall, prepared: Prepared, when: str) -> None:
        """Raise WrongAnswer if a valid request fails, or gives other results."""
        request = self._make_request(prepared, copies(arrays_of(known.call)))
        try:
            request.execute(prepared.run, UNLIMITED)
        except DeadObject:
            raise
        except NnhalError as error:
            raise WrongAnswer(f"{when}: a valid request: {type(error).__name__}: {error}") from error
        problem = compare_outputs(known.call, known.wanted, request.results, self._remote.relaxations)
        if problem:
            raise WrongAnswer(f"{when}: {known.call.cell.op.name}: {problem}")

    def _make_request(
        self, prepared: Prepared, arrays: Sequence[Array | None], rooms: Sequence[Array | None] | None = None
    ) -> Request:
        return Request(Signature.of(prepared.model, where_of(self._remote)), arrays, rooms)

    # ------------------------------------------------------------------------------------------------------------- models

    def _model(self, choices: Choices) -> str:
        """Prepare a changed model, and execute it if it is valid."""
        call = drawn(choices, self._cells) if choices.random() < SUPPORTED else drawn(choices)
        model = mutated(choices, model_of(call))
        try:
            validate(model)
            valid = True
        except InvalidModel:
            valid = False
        try:
            verdicts = query_verdicts(self._remote, model)
            accepted = bool(verdicts) and all(verdict.ok for verdict in verdicts)
        except DriverFailed as error:
            raise WrongAnswer(f"supports() of a changed model: {error}, must be no or InvalidModel") from error
        except DeadObject:
            raise
        except NnhalError:
            accepted = False
        if valid and any(refusals(model, self._remote.level)):
            accepted = False  # newer than its HAL version: no runtime asks for it
        if accepted and not valid:
            raise WrongAnswer(f"supports() accepts an invalid model: {_rule(model)}")
        try:
            prepared = checked_prepared(self._remote, model, self._hints)
        except DeadObject:
            raise
        except NnhalError as error:
            if valid and accepted:
                raise WrongAnswer(f"supports() accepts a model; prepare(): {type(error).__name__}: {error}") from error
            return "refused"
        try:
            if not valid:
                raise WrongAnswer(f"prepare() accepts an invalid model: {_rule(model)}")
            arrays = [_fitting(a) for a in Signature.of(model).inputs]
            return self._executed(prepared, arrays, supported=accepted)
        finally:
            prepared.close()

    def _executed(self, prepared: Prepared, arrays: Sequence[Array], *, supported: bool = True) -> str:
        """Execute a valid request: of a supported model, it may fail only if the reference refuses its values too."""
        request = self._make_request(prepared, arrays)
        try:
            request.execute(prepared.run, UNLIMITED)
        except DeadObject:
            raise
        except NnhalError as error:
            if supported and (isinstance(error, NOT_NAMED) or _is_computed(prepared.model, arrays)):
                raise WrongAnswer(f"a valid request: {type(error).__name__}: {error}, must be executed") from error
            return type(error).__name__
        return "executed"

    # ----------------------------------------------------------------------------------------------------------- requests

    def _request_of(self, choices: Choices) -> tuple[RemotePrepared, list[Array]]:
        number = choices.randrange(len(self._known))
        return self._of(number), copies(arrays_of(self._known[number].call))

    def _values(self, choices: Choices) -> str:
        """Execute with any values."""
        prepared, arrays = self._request_of(choices)
        for array in arrays:
            flat = array.reshape(-1).view(np.uint8)
            pattern = choices.choice((b"\0", b"\xff", b"\x7f", b"\0\0\xc0\x7f", choices.randbytes(8)))
            for _ in range(choices.randint(1, 3)):
                place = choices.randrange(flat.size)
                part = flat[place : place + choices.choice((1, 4, 64, flat.size))]
                part[:] = np.resize(np.frombuffer(pattern, np.uint8), part.size)
        return self._executed(prepared, arrays)

    def _request(self, choices: Choices) -> str:
        """Execute with arguments that are missing, too many, or of another type or shape."""
        prepared, arrays = self._request_of(choices)
        given: list[Array | None] = list(arrays)
        place, kind = choices.randrange(len(arrays)), choices.randrange(7)
        array = arrays[place]
        if kind == 0:
            del given[place]
        elif kind == 1:
            given.insert(place, array)
        elif kind == 2:
            given[place] = np.ones(
                array.shape, choices.choice([t for t in ("f8", "i8", "u2") if t != array.dtype.str[1:]])
            )
        elif kind == 3:
            given[place] = array.reshape(*array.shape, 1)
        elif kind == 4:
            given[place] = np.zeros(
                [choices.choice((0, 1, 2, 3, 70)) for _ in range(choices.randrange(6))], array.dtype
            )
        elif kind == 5:
            given = []
        rooms: list[Array | None] | None = None
        if kind == 6:
            outputs = Signature.of(prepared.model).outputs
            rooms = [np.empty([d + choices.choice((-1, 0, 1)) for d in a.fixed or ()] or [2], a.dtype) for a in outputs]
        request = self._make_request(prepared, given, rooms)
        same = all(  # no dimensions on the wire are those of the model
            a is not None and (a.shape == b.shape or (a.shape == () and b.size == 1))
            for a, b in zip(given, arrays, strict=False)
        )
        try:
            request.execute(prepared.run, UNLIMITED)
        except DeadObject:
            raise
        except NOT_NAMED as error:
            raise WrongAnswer(f"a request with other arguments: {type(error).__name__}: {error}") from error
        except NnhalError as error:
            return type(error).__name__
        if kind < 6 and not (same and len(given) == len(arrays) and kind == 4):
            raise WrongAnswer(f"a request with other arguments ({kind}) is executed, must be refused")
        return "executed"

    def _arguments(self, choices: Choices) -> str:
        """Bind arguments that lie anywhere, and execute what is accepted."""
        prepared, arrays = self._request_of(choices)
        valid, memory = wire_arguments(prepared.signature, arrays)
        both: list[list[wire.WireArgument | None]] = [[*valid.inputs], [*valid.outputs]]
        for _ in range(choices.randint(1, 3)):
            several = both[choices.randrange(2)]
            if several:
                place = choices.randrange(len(several))
                several[place] = _misplaced(choices, several[place], memory.size)
        session = self._remote.session
        with session.carrying([memory], UNLIMITED) as packing:
            pools = tuple(wire.MemoryPool(packing.pool(memory)) for _ in range(choices.choice((1, 1, 1, 0, 2))))
            binding = RemoteBinding(session)
            whole = wire.WireRequest(tuple(both[0]), tuple(both[1]), pools)
            try:
                session.call(wire.Bind(binding.number, prepared.number, whole), wire.Acknowledged, UNLIMITED, packing)
                form = wire.form_for(wire.ExecuteSynchronously, self._remote.level)
                session.call(wire.ExecuteSynchronously(form or V1_3, binding.number), wire.Reply, UNLIMITED)
            except DeadObject:
                raise
            except NnhalError as error:
                return type(error).__name__
        return "executed"

    # ------------------------------------------------------------------------------------------------------------ packets

    def _packet(self, choices: Choices) -> str:
        """Send a changed packet over a burst."""
        if (
            self._remote.level < V1_2
            or wire.form_for(wire.ConfigureExecutionBurst, self._remote.session.methods) is None
        ):
            return "no bursts"
        number = choices.randrange(len(self._known))
        prepared = self._of(number)
        burst = self._bursts.get(number)
        if burst is None:
            burst = self._bursts[number] = PacketBurst(prepared, UNLIMITED)
        packet = burst.packet_of(self._make_request(prepared, copies(arrays_of(self._known[number].call))))
        message = unpack(packet)
        call = wire.decode_call(message)
        assert isinstance(call, wire.ExecuteSynchronously)
        bad = changed_packet(choices, packet) if choices.random() < 0.5 else pack(changed(choices, message, packet))
        try:
            answer = burst.send(bad)
        except ValueError:  # the queue itself refuses it
            return "refused by the queue"
        if isinstance(answer, int) and answer in ENDED:
            burst.close()
            del self._bursts[number]
            self._remote.session.call(
                wire.GetStatus(), wire.TextReply, UNLIMITED
            )  # DeadObject if the process has ended
            return "ended the burst"
        self._latest = max(self._latest, call.binding)
        if _announces_one_of(bad, self._latest):
            return "the execution of a binding"
        problem = problem_of(answer)
        if problem:
            raise WrongAnswer(f"a changed packet {bad.hex()}: {problem}")
        return "refused"

    # -------------------------------------------------------------------------------------------------------- cache files

    def _saved_files(self) -> tuple[int, list[bytes], CacheFiles] | None:
        """Return the number of a known call, the files that the driver saves for it, and how many are model files."""
        count = cache_files_by(self._remote)
        by_constants = sorted(
            enumerate(self._known), key=lambda known: (known[1].call.cell.kind != F32, -known[1].call.constants)
        )
        for number, known in by_constants if sum(count) else ():
            with empty_files(count) as cache:
                checked_prepared(self._remote, known.model, replace(self._hints, cache=cache)).close()
                if is_written(cache):
                    return number, [os.pread(fd, os.fstat(fd).st_size, 0) for fd in cache.files], count
        return None

    def _cache(self, choices: Choices) -> str:
        """Restore from changed files."""
        if self._saved is None:
            return "nothing is saved"
        number, data, count = self._saved
        known, files = self._known[number], list(data)
        for _ in range(choices.randint(1, 2)):
            place = choices.randrange(len(files))
            files[place] = damaged(choices, files[place], files[-1 - place])
        with empty_files(count) as cache:
            for fd, content in zip(cache.files, files, strict=True):
                os.pwrite(fd, content, 0)
            try:
                prepared = restored_from(self._remote, known.model, replace(self._hints, cache=cache))
            except DeadObject:
                raise
            except NnhalError:
                return "a miss"
            self._require_right(known, prepared, "restored from changed cache files")
            prepared.close()
        return "a hit"


def _rule(model: Model) -> str:
    """Return the rule that an invalid model breaks."""
    try:
        validate(model)
    except InvalidModel as error:
        return str(error)
    return ""


def _is_computed(model: Model, arrays: Sequence[Array]) -> bool:
    """Whether the reference executes a request."""
    try:
        by_reference(model, arrays)
    except NnhalError:
        return False
    return True


def _fitting(argument: Argument) -> Array:
    """Return zeros of a model's input, with 2 for each unknown dimension."""
    return np.zeros([2] if argument.shape is None else [2 if d is None else d for d in argument.shape], argument.dtype)


def _misplaced(choices: Choices, place: wire.WireArgument | None, size: int) -> wire.WireArgument | None:
    """Return another place of an argument. size: of its memory."""
    kind = choices.randrange(6)
    if kind == 0 or place is None:
        return None
    number = choices.choice((*NUMBERS, size, size + 1, 2**64 - 1, place.offset + 1))
    if kind == 1:
        return replace(place, pool=choices.choice((-2, -1, 1, 2, 2**31 - 1)))
    if kind == 2:
        return replace(place, offset=number)
    if kind == 3:
        return replace(place, length=number)
    if kind == 4:
        return replace(
            place, dimensions=tuple(choices.choice((0, 1, 2, 2**31 - 1)) for _ in range(choices.randrange(6)))
        )
    return replace(place, offset=choices.choice((0, 64, 128)))


def _announces_one_of(packet: bytes, latest: int) -> bool:
    """Whether a packet is an execution of a binding of this client; their numbers rise."""
    try:
        return is_execution(unpack(packet), range(latest + 1))
    except ValueError:
        return False

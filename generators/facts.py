"""The facts of a program: what each value depends on, and which weights must be folded.

Computed by dataflow over the program itself, never over an FX graph, so that they are a ground truth that
is independent of every pass under test. The rules are those of the effects in ``vocabulary.Effect``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from generators.program import Layer, Method, Program, Step
from generators.quantization import QUANTIZATIONS
from generators.storage import WRITES, Storages, canonical
from generators.validate import validate
from generators.vocabulary import (
    LAYERS,
    OPS,
    PARAMETRIZATIONS,
    Effect,
    Type,
    layer_bias,
    layer_weight,
)

INPUT, STATE, RANDOM, QUANTIZED, SHAPE = "input", "state", "random", "quantized", "shape"

Slot = tuple[str, int, str]


class Verdict(enum.Enum):
    """What a fold has to do with the weight or bias of a consumer."""

    FOLD = "must be folded"
    KEEP = "must not be folded"
    EITHER = "may be folded or left"


@dataclass(frozen=True)
class Value:
    """What a value depends on.

    ``labels``: any of input, state (a buffer that some method writes), random, quantized, shape (only the
    shape of something that has a label). ``sources``: owned tensors whose data it is computed from, where
    ``conv.weight`` names a layer's. ``held``: owned tensors that the graph needs in order to compute it,
    which for ``ones_like(w)`` is ``w`` although no number of ``w`` matters.
    """

    labels: frozenset[str] = frozenset()
    sources: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()

    def __or__(self, other: Value) -> Value:
        return Value(self.labels | other.labels, self.sources | other.sources, self.held | other.held)


@dataclass(frozen=True)
class Weight:
    """A computed weight or bias of a consumer: where it is, what it is called, what must become of it."""

    slot: Slot
    name: str
    type: Type
    value: Value
    verdict: Verdict
    reason: str


@dataclass(frozen=True)
class Facts:
    """The facts of a program.

    ``outputs``: method -> what each output depends on. ``values``: method -> name of an input or a result ->
    what its memory depends on at the end of a call. ``written``: method -> names of the buffers and
    inputs that it writes. ``weights``: every computed weight and bias, in program order; a slot is (method,
    index of the step, ``weight`` or ``bias``). ``stops``: the first stage at which ExecuTorch has no way on
    whatever the fold, ``lower`` or ``run``, else "". ``reductions``: the lengths of all reductions added up,
    and one for every other op. ``half``: something is computed in float16. ``float64``: there is a float64
    form of every op.
    """

    outputs: Mapping[str, tuple[Value, ...]]
    values: Mapping[str, Mapping[str, Value]]
    written: Mapping[str, frozenset[str]]
    weights: tuple[Weight, ...]
    quantized: bool
    stops: Literal["", "lower", "run"]
    reductions: int
    half: bool
    float64: bool

    def must_fold(self) -> list[Weight]:
        """The weights that a fold must fold."""
        return [weight for weight in self.weights if weight.verdict is Verdict.FOLD]

    def may_fold(self) -> list[Weight]:
        """The weights that a fold must or may fold whatever the shapes of the inputs."""
        kept = [weight for weight in self.weights if weight.verdict is not Verdict.KEEP]
        return [weight for weight in kept if SHAPE not in weight.value.labels]


def facts_of(program: Program) -> Facts:
    """The facts of a valid program.

    Raises:
        ProgramError: the program is not valid.
    """
    types = validate(program)
    state = _state(program)
    flows = {method.name: _Flow(program, method, state).run() for method in program.methods}
    ops = [OPS[step.op] for _, step in program.walk()]
    half = any(tensor.dtype == "float16" for tensor in program.tensors)
    return Facts(
        outputs={name: flow.outputs() for name, flow in flows.items()},
        values={name: flow.values() for name, flow in flows.items()},
        written={name: frozenset(flow.written) for name, flow in flows.items()},
        weights=tuple(_weights(program, state, flows, types)),
        quantized=program.quantization is not None or any(op.effect is Effect.QDQ for op in ops),
        stops=_stops(program),
        reductions=sum(_reduction(program, step, types[method.name]) for method, step in program.walk()),
        half=half,
        float64=not half and all(op.float64 for op in ops),
    )


def _stops(program: Program) -> Literal["", "lower", "run"]:
    stops = {OPS[step.op].stops for _, step in program.walk()}
    if program.quantization is not None:
        stops.add(QUANTIZATIONS[program.quantization].stops)
    # XNNPACK's ChannelsLastTaggedReshapePass dies of a stored weight in that format.
    last = {tensor.name for tensor in program.tensors if tensor.layout == "channels_last"}
    weights = {step.args[place] for _, step in program.walk() if (place := OPS[step.op].weight) is not None}
    if program.joint or last & weights or "lower" in stops:
        return "lower"
    return "run" if "run" in stops else ""


class _Flow:
    """One pass over a method. ``cut`` slots are read as if a plain parameter stood there."""

    def __init__(
        self,
        program: Program,
        method: Method,
        state: Mapping[str, frozenset[str]],
        cut: frozenset[Slot] = frozenset(),
    ) -> None:
        self.program, self.method, self.cut = program, method, cut
        self.layers = {layer.name: layer for layer in program.layers}
        self.content = {
            name: Value(state.get(name, frozenset()), *[frozenset({name})] * 2)
            for name in (canonical(program, tensor.name) for tensor in program.tensors)
        }
        self.content |= {name: Value(labels) for name, labels in state.items() if name not in self.content}
        self.content |= {item.name: Value(frozenset({INPUT})) for item in method.inputs}
        self.storages = Storages(program, self.content)
        self.outside = set(self.content)
        self.written: set[str] = set()
        self.read: dict[Slot, tuple[str, Value]] = {}

    def run(self) -> _Flow:
        for index, step in enumerate(self.method.steps):
            self._apply(index, step)
        return self

    def outputs(self) -> tuple[Value, ...]:
        return tuple(self.value(name) for name in self.method.outputs)

    def values(self) -> dict[str, Value]:
        results = (out for step in self.method.steps for out in step.outs)
        return {name: self.value(name) for name in (*(item.name for item in self.method.inputs), *results)}

    def value(self, name: str) -> Value:
        """What the memory of ``name`` depends on now."""
        return self.content[self.storages.of(name)]

    def live(self) -> frozenset[str]:
        """Owned tensors that the outputs and the written state need."""
        kept = [*self.outputs(), *(self.content[name] for name in self.written)]
        return frozenset().union(*(value.held for value in kept))

    def _argument(self, index: int, name: str, kind: str | None) -> Value:
        if kind is None:
            return self.value(name)
        slot = (self.method.name, index, kind)
        self.read[slot] = (name, self.value(name))
        return Value() if slot in self.cut else self.value(name)

    def _apply(self, index: int, step: Step) -> None:
        op = OPS[step.op]
        kinds = {op.weight: "weight", op.bias: "bias"}
        read = [self._argument(index, arg, kinds.get(i)) for i, arg in enumerate(step.args)]
        merged = Value()
        for item in read:
            merged |= item
        if op.reads == ():
            merged = Value(frozenset({SHAPE}) if merged.labels else frozenset(), held=merged.held)
        if step.op == "call":
            merged |= self._layer(index, str(step.attrs["layer"]))
        if step.op == "cond":
            merged |= self._branches(step, read[1:])
        if op.effect is Effect.RANDOM:
            merged |= Value(frozenset({RANDOM}))
        if op.effect is Effect.QDQ:
            merged |= Value(frozenset({QUANTIZED}))
        self.storages.apply(step)
        if op.effect in WRITES:
            self._write(step.args[0], merged, read[1:], op.effect)
        for out in step.outs:
            root = self.storages.of(out)
            if root == out:
                self.content[root] = merged

    def _write(self, target: str, merged: Value, rest: list[Value], effect: Effect) -> None:
        root = self.storages.of(target)
        if effect is Effect.OVERWRITE and target == root:
            merged = Value()
            for item in rest:
                merged |= item
        self.content[root] = merged
        if root in self.outside:
            self.written.add(root)

    def _branches(self, step: Step, operands: list[Value]) -> Value:
        """What either branch reads beside its operands: the tensors that it captures."""
        merged = Value()
        for branch in self.program.branches:
            if branch.name in (step.attrs["then"], step.attrs["other"]):
                flow = _Flow(self.program, branch, {})
                known = {name: self.content[name] for name in self.content if name in flow.content}
                inputs = (item.name for item in branch.inputs)
                flow.content |= known | dict(zip(inputs, operands, strict=True))
                merged |= flow.run().outputs()[0]
        return merged

    def _layer(self, index: int, name: str) -> Value:
        layer = self.layers[name]
        merged = Value()
        flow = self.program.quantization
        quantized = flow is not None and layer.kind in QUANTIZATIONS[flow].kinds
        for target in ("weight", "bias") if layer_bias(layer) else ("weight",):
            value = self._owned(layer, target)
            slot = (self.method.name, index, target)
            computed = any(item.target == target for item in layer.parametrizations)
            if computed and LAYERS[layer.kind].gemm:
                self.read[slot] = (f"{name}.{target}", value)
            merged |= Value() if slot in self.cut else value
        return merged | (Value(frozenset({QUANTIZED})) if quantized else Value())

    def _owned(self, layer: Layer, target: str) -> Value:
        """What the weight or bias of a layer is computed from; in training mode it may write."""
        key = frozenset({f"{layer.name}.{target}"})
        value = Value(sources=key, held=key)
        chain = [item for item in layer.parametrizations if item.target == target]
        for place, item in enumerate(chain):
            if item.shared:
                shared = frozenset({f"shared.{item.kind}"})
                value |= Value(sources=shared, held=shared)
            for name in PARAMETRIZATIONS[item.kind].trained if self.program.train else ():
                buffer = f"{layer.path}.parametrizations.{target}.{place}.{name}"
                value |= Value(frozenset({STATE}))
                self.content[buffer] = value
                self.written.add(buffer)
        return value


def _state(program: Program) -> dict[str, frozenset[str]]:
    """Labels that each buffer which some method writes has at the start of a call, over any calls."""
    state: dict[str, frozenset[str]] = {}
    while True:
        before = dict(state)
        for method in program.methods:
            flow = _Flow(program, method, state).run()
            for name in flow.written - {item.name for item in method.inputs}:
                labels = flow.content[name].labels | {STATE}
                state[name] = state.get(name, frozenset()) | labels
        if state == before:
            return state


def _weights(
    program: Program,
    state: Mapping[str, frozenset[str]],
    flows: Mapping[str, _Flow],
    types: Mapping[str, Mapping[str, Type]],
) -> Iterable[Weight]:
    layers = {layer.name: layer for layer in program.layers}
    owned = {tensor.name: Type(tensor.shape, tensor.dtype) for tensor in program.tensors}
    found: list[Weight] = []
    if program.joint:
        return found  # A training graph is left alone.
    for method, flow in flows.items():
        inputs = {item.name for item in flow.method.inputs}
        for slot, (name, value) in flow.read.items():
            if name in owned or name in inputs:
                continue  # Static already, or an input: nothing is computed.
            if "." in name:
                layer = layers[name.split(".")[0]]
                given = layer_weight(layer) if slot[2] == "weight" else layer_bias(layer)
                assert given is not None
            else:
                given = types[method][name]
            verdict, reason = _verdict(program, value)
            found.append(Weight(slot, name, given, value, verdict, reason))
    return _without_growth(program, state, owned, found)


def _verdict(program: Program, value: Value) -> tuple[Verdict, str]:
    for label, reason in (
        (INPUT, "depends on an input"),
        (STATE, "depends on a buffer that is written"),
        (RANDOM, "depends on a random draw"),
        (QUANTIZED, "is quantized"),
    ):
        if label in value.labels:
            return Verdict.KEEP, reason
    if SHAPE in value.labels:
        return Verdict.EITHER, "depends on the shape of a value that is not constant"
    if not value.sources:
        return Verdict.KEEP, "is made by factory ops alone"
    if program.quantization and QUANTIZATIONS[program.quantization].reach == "all":
        return Verdict.EITHER, "may be quantized by the flow"
    return Verdict.FOLD, "depends on constants only"


def _without_growth(
    program: Program,
    state: Mapping[str, frozenset[str]],
    owned: Mapping[str, Type],
    found: list[Weight],
) -> list[Weight]:
    """Leaves to the fold what would add more bytes than it frees: such a fold only adds a copy."""
    wanted = [weight for weight in found if weight.verdict is Verdict.FOLD]
    cut = frozenset(weight.slot for weight in wanted)
    live: frozenset[str] = frozenset()
    for method in program.methods:
        live |= _Flow(program, method, state, cut).run().live()
    sizes = {name: given.bytes for name, given in owned.items()} | _layer_bytes(program)
    grows: set[Slot] = set()
    for group in _groups(wanted):
        added = sum(given.bytes for given in {item.name: item.type for item in group}.values())
        freed = sum(sizes[name] for name in _held(group) - live)
        if added > freed:
            grows |= {item.slot for item in group}
    reason = "would make the program larger"
    return [
        Weight(w.slot, w.name, w.type, w.value, Verdict.EITHER, reason) if w.slot in grows else w
        for w in found
    ]


def _held(group: Iterable[Weight]) -> frozenset[str]:
    return frozenset().union(*(item.value.held for item in group))


def _groups(weights: list[Weight]) -> list[list[Weight]]:
    """The weights in groups that share no source with one another."""
    groups: list[list[Weight]] = []
    for weight in weights:
        touching = [group for group in groups if _held(group) & weight.value.held]
        groups = [group for group in groups if group not in touching]
        groups.append([weight, *(item for group in touching for item in group)])
    return groups


def _layer_bytes(program: Program) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for layer in program.layers:
        for target, given in (("weight", layer_weight(layer)), ("bias", layer_bias(layer))):
            if given is None:
                continue
            kinds = [item.kind for item in layer.parametrizations if item.target == target]
            stored = [PARAMETRIZATIONS[kind].stored(given.shape) for kind in kinds]
            sizes[f"{layer.name}.{target}"] = 4 * max(stored, default=given.elements)
            # A module that can be shared owns a scalar at most.
            sizes |= {f"shared.{item.kind}": 4 for item in layer.parametrizations if item.shared}
    return sizes


def _reduction(program: Program, step: Step, types: Mapping[str, Type]) -> int:
    """How many terms one element of the step's result is summed from, those of its weight included."""
    op = OPS[step.op]
    if step.op == "call":
        layer = next(item for item in program.layers if item.name == step.attrs["layer"])
        # A parametrization reduces over the whole weight at most (a norm, a product).
        return layer_weight(layer).elements * (1 + len(layer.parametrizations))
    if op.weight is not None:
        weight = types[step.args[op.weight]]
        return max(1, weight.elements // max(1, weight.shape[op.channel]))
    read = max((types[arg].elements for arg in step.args), default=1)
    made = max((types[out].elements for out in step.outs), default=read)
    return max(1, read // max(1, made))

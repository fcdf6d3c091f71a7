"""The twin: the program with computed weights replaced, by hand, by plain parameters of their values.

What stock lowering makes of the twin with each must-fold weight folded is what a perfect fold would reach.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from generators.facts import Weight
from generators.program import Layer, Method, Program, Step, Tensor
from generators.prune import prune
from generators.vocabulary import LAYERS, OPS, Type, layer_bias, layer_weight

FUNCTIONAL = {
    "Linear": "linear",
    "Conv1d": "conv1d",
    "Conv2d": "conv2d",
    "ConvTranspose1d": "conv_transpose1d",
}


@dataclass(frozen=True)
class Twin:
    """The twin, and where the values of its new parameters come from.

    ``program``: the twin; its new parameters hold placeholder values. ``probe``: the original, returning the
    folded values as they are when they are consumed; None where all of them belong to layers.
    ``probed``: method of the probe -> new parameters in the order of the method's outputs.
    ``attributes``: new parameter -> attribute of the original module, such as ``conv0.weight``.
    """

    program: Program
    probe: Program | None
    probed: dict[str, tuple[str, ...]]
    attributes: dict[str, str]


def twin_of(program: Program, weights: Iterable[Weight]) -> Twin:
    """The twin of a valid program, with these of its computed weights folded; without any, the program."""
    hand = _Hand(program, weights)
    methods = tuple(hand.method(method) for method in program.methods)
    folded = msgspec.structs.replace(program, methods=methods, tensors=program.tensors + tuple(hand.tensors))
    probed = {name: tuple(hand.parameters[value] for value in values)
              for name, values in hand.wanted.items() if values}  # fmt: skip
    return Twin(prune(folded), hand.probe() if probed else None, probed, hand.attributes)


class _Hand:
    """Folds by hand: new parameters in place of the weights and of the layers that hold them."""

    def __init__(self, program: Program, weights: Iterable[Weight]) -> None:
        self.program = program
        self.slots = {weight.slot: weight for weight in weights}
        self.layers = {layer.name: layer for layer in program.layers}
        self.tensors: list[Tensor] = []
        self.attributes: dict[str, str] = {}
        self.parameters: dict[tuple[str, str], str] = {}
        self.wanted: dict[str, list[tuple[str, str]]] = {m.name: [] for m in program.methods}
        self.probes: dict[str, list[Step]] = {}

    def _parameter(self, key: tuple[str, str], given: Type) -> str:
        """The new parameter that stands for ``key``, made at its first use."""
        if key not in self.parameters:
            name = f"folded_{len(self.tensors)}"
            dtype: Any = given.dtype
            self.tensors.append(Tensor(name, "parameter", given.shape, dtype=dtype))
            self.parameters[key] = name
        return self.parameters[key]

    def method(self, method: Method) -> Method:
        steps = []
        probes: list[Step] = []
        for index, step in enumerate(method.steps):
            steps.append(self._step(method, index, step, probes))
            probes.append(step)
        self.probes[method.name] = probes
        return msgspec.structs.replace(method, steps=tuple(steps))

    def _step(self, method: Method, index: int, step: Step, probes: list[Step]) -> Step:
        if step.op == "call":
            layer = self.layers[str(step.attrs["layer"])]
            held = [(method.name, index, target) in self.slots for target in ("weight", "bias")]
            return self._functional(layer, step) if any(held) else step
        op = OPS[step.op]
        args = list(step.args)
        for position, kind in ((op.weight, "weight"), (op.bias, "bias")):
            weight = self.slots.get((method.name, index, kind))
            if weight is None or position is None:
                continue
            key = (method.name, weight.name)
            if key not in self.parameters:
                self.wanted[method.name].append(key)
                copy = f"probe_{len(self.wanted[method.name])}"
                probes.append(Step("clone", (weight.name,), (copy,)))
            args[position] = self._parameter(key, weight.type)
        return msgspec.structs.replace(step, args=tuple(args))

    def _functional(self, layer: Layer, step: Step) -> Step:
        """The call of a layer as the functional op over parameters that hold what the layer computes."""
        kind = LAYERS[layer.kind]
        owned = {"weight": layer_weight(layer), "bias": layer_bias(layer)}
        args = [step.args[0]]
        for target, given in owned.items():
            if given is not None:
                attribute = f"{layer.path}.{target}"
                name = self._parameter(("", attribute), given)
                self.attributes[name] = attribute
                args.append(name)
        op = OPS[FUNCTIONAL[kind.name]]
        attrs = {name: layer.attrs[name] for name in op.attrs}
        return Step(op.name, tuple(args), step.outs, attrs)

    def probe(self) -> Program:
        """The original program whose methods return copies of the must-fold values instead."""
        change: Callable[..., Method] = msgspec.structs.replace
        methods = tuple(
            change(
                method,
                steps=tuple(self.probes[method.name]),
                outputs=tuple(f"probe_{i + 1}" for i in range(len(self.wanted[method.name])))
                or method.outputs,
            )
            for method in self.program.methods
        )
        return msgspec.structs.replace(self.program, methods=methods)

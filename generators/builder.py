"""The builder: turns draws into a valid program, one typed step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from generators.members import MEMBERS, Member, Shape, of_kind
from generators.program import Call, Input, Layer, Method, Parametrization, Program, Step, Tensor
from generators.vocabulary import LAYERS, OPS, Type

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]


DEPTH = 3
"""How deep a weight expression may be."""
ODDS = {True: (True, False, False, False), False: (True, True, False)}
"""Whether a weight is a plain parameter: at the consumer itself, and inside an expression."""


class Builder:
    """Grows one method. Every value has a known type; every name is new.

    Args:
        draw: Hypothesis' draw function.
        members: names of the members that this program may use (swarm testing).
    """

    def __init__(self, draw: Draw, members: frozenset[str]) -> None:
        self.draw = draw
        self.members = members
        self.types: dict[str, Type] = {}
        self.tensors: list[Tensor] = []
        self.layers: list[Layer] = []
        self.inputs: list[Input] = []
        self.body: list[Step] = []
        self.extra_outputs: list[str] = []
        self.quantization: str | None = None
        self.widths: tuple[int, ...] = (4, 3, 8, 7)

    # Draws. The first choice is always the plainest, because that is what shrinking goes for.

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return self.draw(st.integers(low, high))

    def pick(self, choices: Sequence[T]) -> T:
        """One of ``choices``."""
        return self.draw(st.sampled_from(list(choices)))

    def coin(self) -> bool:
        """True or false; shrinks to false."""
        return self.draw(st.booleans())

    def channels(self) -> int:
        """A number of channels: small, also prime, or as wide as the quantization's groups demand."""
        return self.pick(self.widths)

    # Parts of the program.

    def _name(self, prefix: str) -> str:
        taken = {name for name in self.types if name.startswith(prefix)}
        taken |= {layer.name for layer in self.layers}
        return next(f"{prefix}{i}" for i in range(len(taken) + 1) if f"{prefix}{i}" not in taken)

    def tensor(self, role: str, shape: Shape, values: str = "randn") -> str:
        """A new parameter, buffer or inline constant."""
        name = self._name({"parameter": "w", "buffer": "b", "constant": "c"}[role])
        self.tensors.append(Tensor(name, role, tuple(shape), values))  # type: ignore[arg-type]
        self.types[name] = Type(tuple(shape))
        return name

    def input(self, shape: Shape, high: int | None = None) -> str:
        """A new positional input: float32, or int64 below ``high``."""
        name = self._name("x" if high is None else "i")
        self.inputs.append(Input(name, tuple(shape), high))
        self.types[name] = Type(tuple(shape), "float32" if high is None else "int64")
        return name

    def layer(self, kind: str, parametrizations: Sequence[Parametrization] = (), **attrs: Any) -> str:
        """A new layer; the name says what it is."""
        name = self._name({"Linear": "linear"}.get(kind, "conv"))
        self.layers.append(Layer(name, kind, attrs, tuple(parametrizations)))
        return name

    def steps(self, op: str, *args: str, **attrs: Any) -> list[str]:
        """Appends a step and names all its results."""
        types = OPS[op].infer([self.types[arg] for arg in args], attrs)
        return self._append(op, args, attrs, types)

    def step(self, op: str, *args: str, **attrs: Any) -> str:
        """Appends a step that has one result, and names it."""
        (out,) = self.steps(op, *args, **attrs)
        return out

    def write(self, op: str, *args: str, **attrs: Any) -> None:
        """Appends an in-place step as a statement: its result is the first argument itself."""
        OPS[op].infer([self.types[arg] for arg in args], attrs)
        self.body.append(Step(op, args, (), attrs))

    def call(self, layer: str, arg: str) -> str:
        """Appends a call of ``layer``."""
        found = next(item for item in self.layers if item.name == layer)
        given = LAYERS[found.kind].infer(self.types[arg], found.attrs)
        return self._append("call", (arg,), {"layer": layer}, [given])[0]

    def _append(self, op: str, args: Sequence[str], attrs: Any, types: Sequence[Type]) -> list[str]:
        outs = []
        for given in types:
            outs.append(self._name("v"))
            self.types[outs[-1]] = given
        self.body.append(Step(op, tuple(args), tuple(outs), attrs))
        return outs

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.types[name].shape

    # Demand-driven drawing.

    def weight(self, shape: Shape, depth: int) -> str:
        """A value of ``shape`` from the members that may make weights, at most ``depth`` deep."""
        plain = MEMBERS["parameter"]
        fits = [
            member
            for member in of_kind("weight")
            if member.name in self.members and member.admits(shape) and self._lowers(member)
        ]
        # A single step on a plain parameter is common, and a pile of them now and then.
        if depth <= 0 or not fits or self.pick(ODDS[depth >= DEPTH]):
            return plain.draw(self, shape, 0)
        return self.pick(fits).draw(self, shape, depth - 1)

    def _lowers(self, member: Member) -> bool:
        """PT2E leaves a per-channel quantize on a weight that changes from call to call, or is made by a
        matmul; the kernel of that op aborts the process."""
        pt2e = self.quantization is not None and self.quantization.startswith("pt2e")
        return not pt2e or not (member.family in ("mutations", "randomness") or member.name == "lora")

    def block(self, activation: str) -> str:
        """Steps of one member that take and give an activation."""
        fits = [
            member
            for member in of_kind("block")
            if member.name in self.members and member.admits(self.shape(activation))
        ]
        return self.pick(fits).draw(self, activation) if fits else activation

    def finish(self, activation: str, calls: int) -> Program:
        """The program: one method that returns the activation and the extra outputs."""
        outputs = tuple(dict.fromkeys([activation, *self.extra_outputs]))
        method = Method("forward", tuple(self.inputs), tuple(self.body), outputs)
        return Program(
            methods=(method,),
            calls=tuple(Call("forward", seed) for seed in range(calls)),
            tensors=tuple(self.tensors),
            layers=tuple(self.layers),
            quantization=self.quantization,
        )

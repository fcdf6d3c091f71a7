"""The builder: turns draws into a valid program, one typed step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st

from generators.members import MEMBERS, Member, Shape
from generators.program import Call, Dim, Input, Layer, Method, Parametrization, Program, Step, Tensor
from generators.vocabulary import LAYERS, OPS, Type

T = TypeVar("T")
Draw = Callable[[st.SearchStrategy[Any]], Any]

DEPTH = 3
"""How deep a weight expression may be."""
SHAPES: tuple[Shape, ...] = ((2, 4), (2, 4, 6), (1, 4, 5, 5))
"""Of activations."""
UNFOLDED = ("mutations", "randomness", "factories", "quantization")
MATMULS = ("lora", "product", "weight-einsum")
PLAIN = (False, False, False, True)
"""Whether a weight is left plain although there is something to make it of."""


class Builder:
    """Grows one program, method by method. Every value has a known type; every name is new.

    Args:
        draw: Hypothesis' draw function, or one that always takes the first choice.
        members: what the program is to hold (swarm testing), in the order in which it is tried.
    """

    def __init__(self, draw: Draw, members: Sequence[str]) -> None:
        self.draw = draw
        self.pending = [MEMBERS[name] for name in members]
        self.placed: dict[str, None] = {}
        self.types: dict[str, Type] = {}
        self.dynamic: set[str] = set()
        self.tensors: list[Tensor] = []
        self.layers: list[Layer] = []
        self.branches: list[Method] = []
        self.methods: list[Method] = []
        self.dims: list[Dim] = []
        self.options: dict[str, Any] = {}
        self.widths: tuple[int, ...] = (4, 3, 8, 7)
        self.shapes = SHAPES
        self.begin_method("forward")

    def begin_method(self, name: str) -> None:
        """Begins a method, which shares tensors and layers with those before it."""
        self._method = name
        self.inputs: list[Input] = []
        self.body: list[Step] = []
        self.streams: list[str] = []
        self.extra_outputs: list[str] = []
        self._local: set[str] = set()

    # Draws. The first choice is always the plainest, because that is what shrinking goes for.

    def integer(self, low: int, high: int) -> int:
        """An integer from ``low`` to ``high``, both included."""
        return self.draw(st.integers(low, high))

    def pick(self, choices: Sequence[T]) -> T:
        """One of ``choices``."""
        return self.draw(st.sampled_from(choices)) if len(choices) > 1 else choices[0]

    def coin(self) -> bool:
        """True or false; shrinks to false."""
        return self.draw(st.booleans())

    def channels(self) -> int:
        """A number of channels: small, also prime, or as wide as the quantization's groups demand."""
        return self.pick(self.widths)

    # Parts of the program.

    def _name(self, prefix: str) -> str:
        taken = {*self.types, *(layer.name for layer in self.layers), *(m.name for m in self.branches)}
        return next(f"{prefix}{i}" for i in range(len(taken) + 1) if f"{prefix}{i}" not in taken)

    def tensor(self, role: str, shape: Shape, values: str = "randn", **options: Any) -> str:
        """A new parameter, buffer or inline constant; ``options`` are further fields of ``Tensor``."""
        name = self._name({"parameter": "w", "buffer": "b", "constant": "c"}[role])
        self.tensors.append(Tensor(name, role, tuple(shape), values, **options))  # type: ignore[arg-type]
        self.types[name] = Type(tuple(shape), self.tensors[-1].dtype)
        return name

    def input(self, shape: Shape, high: int | None = None) -> str:
        """A new positional input: float32, or int64 below ``high``."""
        name = self._name("x" if high is None else "i")
        self.inputs.append(Input(name, tuple(shape), high))
        self._value(name, Type(tuple(shape), "float32" if high is None else "int64"))
        return name

    def layer(self, kind: str, parametrizations: Sequence[Parametrization] = (), **attrs: Any) -> str:
        """A new layer; the name says what it is."""
        name = self._name({"Linear": "linear", "Embedding": "embedding"}.get(kind, "conv"))
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

    def branch(self, grow: Callable[[str], str], shape: Shape) -> str:
        """A new branch for ``cond``: ``grow`` makes its one output from its one input of ``shape``."""
        name = self._name("branch")
        outer = self.inputs, self.body
        self.inputs, self.body = [], []
        output = grow(self.input(shape))
        self.branches.append(Method(name, tuple(self.inputs), tuple(self.body), (output,)))
        self.inputs, self.body = outer
        return name

    def _append(self, op: str, args: Sequence[str], attrs: Any, types: Sequence[Type]) -> list[str]:
        outs = []
        for given in types:
            outs.append(self._name("v"))
            self._value(outs[-1], given)
        if self.dynamic.intersection(args):
            self.dynamic |= set(outs)
        self.body.append(Step(op, tuple(args), tuple(outs), attrs))
        return outs

    def _value(self, name: str, given: Type) -> None:
        self.types[name] = given
        self._local.add(name)

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.types[name].shape

    # Demand-driven drawing: what is pending comes first, so that every member of the swarm is placed.

    def _use(self, found: Member) -> Member:
        if found in self.pending:
            self.pending.remove(found)
        self.placed[found.name] = None
        return found

    def _next(self, kind: str, shape: Shape, gemm: bool = False) -> Member | None:
        for found in self.pending:
            if found.kind == kind and found.admits(shape) and not (gemm and not self.lowers(found)):
                return self._use(found)
        return None

    def weight(self, shape: Shape, depth: int, gemm: bool = True) -> str:
        """A value of ``shape`` from the members that may make weights, at most ``depth`` deep."""
        if depth <= 0 or self.pick(PLAIN):
            return self.leaf(shape)
        found = self._next("weight", shape, gemm)
        return found.draw(self, shape, depth - 1) if found else self.leaf(shape)

    def leaf(self, shape: Shape) -> str:
        """An owned tensor of ``shape``, or what is read of one: plain unless a member is pending."""
        found = self._next("leaf", shape)
        return found.draw(self, shape) if found else self.tensor("parameter", shape)

    def lowers(self, found: Member) -> bool:
        """Whether a GEMM of the program may have such a weight.

        PT2E leaves a per-channel quantize on a weight that changes from call to call, or is made by a matmul,
        a factory or another quantize; the kernel of that op aborts the process.
        """
        return not self.pt2e() or not (found.family in UNFOLDED or found.name in MATMULS)

    def pt2e(self) -> bool:
        """Whether the program is quantized by a PT2E flow."""
        return str(self.options.get("quantization")).startswith("pt2e")

    def parametrizations(self, weight: Shape, bias: Shape | None) -> list[Parametrization]:
        """Pending parametrizations for the weight of a layer; on the bias now and then."""
        drawn: list[Parametrization] = []
        for _ in range(2):
            on_bias = bias is not None and self.pick(PLAIN)
            shape = bias if on_bias and bias is not None else weight
            target = "bias" if on_bias else "weight"
            if any(item.target == target for item in drawn):
                continue
            found = self._next("layer", shape)
            drawn += found.draw(self, target, shape) if found else []
        return drawn

    def place(self, found: Member) -> None:
        """Draws a member that is no part of a method's flow."""
        self._use(found).draw(self)

    def block(self, found: Member) -> None:
        """Steps of one block member, on an activation that it admits."""
        fits = [
            name
            for name in self.streams
            if found.admits(self.shape(name)) and not (found.static and name in self.dynamic)
        ]
        if fits:
            x = self.pick(fits)
            self.streams.remove(x)
        else:
            x = self._activation(found)
        self._use(found)
        self.streams.append(found.draw(self, x))

    def _activation(self, found: Member) -> str:
        """A new input that a block admits, of a dynamic batch where the program has one and the block can."""
        admitted = [shape for shape in (*self.shapes, *SHAPES) if found.admits(shape)]
        shape = self.pick(admitted[: len(self.shapes)])
        batch = [dim.name for dim in self.dims if dim.name == "batch"]
        if batch and not found.static:
            # One size for all; torch.export takes a size of 1 for a constant.
            shape = (2, *shape[1:])
        x = self.input(shape)
        if batch and not found.static:
            self.inputs[-1] = Input(x, shape, dims=(batch[0], *[""] * (len(shape) - 1)))
            self.dynamic.add(x)
        return x

    def choose(self, condition: str, x: str, then: str, other: str) -> str:
        """Appends a ``cond`` step over two branches that give what ``x`` is."""
        attrs = {"then": then, "other": other}
        return self._append("cond", (condition, x), attrs, [self.types[x]])[0]

    # The program.

    def finish_method(self) -> None:
        """Ends the method: it returns its activations and the extra outputs."""
        outputs = tuple(dict.fromkeys([*self.streams, *self.extra_outputs]))
        if self.options.get("joint"):
            outputs = self._joint(outputs)
        self.methods.append(Method(self._method, tuple(self.inputs), tuple(self.body), outputs))
        for name in self._local:
            del self.types[name]

    def _joint(self, outputs: tuple[str, ...]) -> tuple[str, ...]:
        """A loss with weight decay: every parameter must have a gradient in it, and no other output may."""
        floats = [name for name in outputs if self.types[name].dtype == "float32"]
        owned = (tensor for tensor in self.tensors if tensor.role == "parameter" and not tensor.tied)
        trained = [item.name for item in owned if item.requires_grad and item.dtype == "float32"]
        decayed = trained or [self.tensor("parameter", (4,))]
        loss, *losses = [self.step("loss", name) for name in dict.fromkeys([*floats, *decayed])]
        for other in losses:
            loss = self.step("add", loss, other)
        rest = [name for name in outputs if name != self.streams[0]]
        return (loss, *(self.step("detach", name) if name in floats else name for name in rest))

    def program(self, calls: int) -> Program:
        """The program, called in turns, at every size of its dynamic dimensions."""
        made = []
        for seed in range(calls):
            sizes = {dim.name: (0, dim.low, dim.high)[seed % 3] for dim in self.dims}
            for method in self.methods:
                own = {name for item in method.inputs for name in item.dims}
                wanted = {name: size for name, size in sizes.items() if size and name in own}
                made.append(Call(method.name, seed, wanted))
        return Program(
            methods=tuple(self.methods),
            calls=tuple(made),
            tensors=tuple(self.tensors),
            layers=tuple(self.layers),
            branches=tuple(self.branches),
            dims=tuple(self.dims),
            **self.options,
        )

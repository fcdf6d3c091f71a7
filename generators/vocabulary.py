"""The vocabulary: what ops, layers and parametrizations a program may use, with the rules of each.

An op is one table entry: how it is written, what types it gives, what it does to memory. The family
modules fill the tables; ``validate``, ``render``, ``facts`` and the builder only read them, so that an op
is added in one place.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from generators.program import Attributes, Layer

DTYPE_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """Shape and dtype of a value, known at every step without torch."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.elements * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


class Effect(enum.Enum):
    """What an op does to memory and to what is known of its values."""

    PURE = "a fresh tensor computed from the arguments"
    VIEW = "a view of argument 0"
    MAYBE_VIEW = "a view or a copy of argument 0, which depends on its strides"
    WRITE = "writes argument 0 in place, in part or by updating it; the result is argument 0"
    OVERWRITE = "writes all of argument 0 in place whatever it held; the result is argument 0"
    FILL = "a scalar fill: one number in every element"
    FACTORY = "a fresh tensor that depends on no data, other than a scalar fill"
    RANDOM = "a fresh tensor that depends on a random draw"
    QDQ = "a quantize or dequantize op"


class TypeRuleError(ValueError):
    """An op that its arguments' types do not admit; the text says what was expected and what came."""


def expect(condition: bool, expected: str, got: object) -> None:
    """Raises ``TypeRuleError`` with both sides unless ``condition`` holds."""
    if not condition:
        raise TypeRuleError(f"expected {expected}, got {got}")


@dataclass(frozen=True)
class Attr:
    """The rule of one attribute: ``kind`` is bool, int, float, ints (a tuple of ints), layer or branch."""

    kind: str
    low: float = -math.inf
    high: float = math.inf

    def problem(self, value: object) -> str | None:
        """What was expected, where ``value`` is not it."""
        if self.kind in ("layer", "branch"):
            return None if isinstance(value, str) else f"the name of a {self.kind}"
        if self.kind == "bool":
            return None if isinstance(value, bool) else "true or false"
        if self.kind == "ints":
            fits = isinstance(value, tuple) and all(self._number(item, int) for item in value)
        else:
            fits = self._number(value, int if self.kind == "int" else (int, float))
        span = "" if self.low == -math.inf else f" from {self.low:g} to {self.high:g}"
        return None if fits else f"{self.kind}{span}"

    def _number(self, value: object, kinds: type | tuple[type, ...]) -> bool:
        return (
            isinstance(value, kinds)
            and not isinstance(value, bool)
            and math.isfinite(value)  # type: ignore[arg-type]
            and self.low <= value <= self.high  # type: ignore[operator]
        )


DIM = Attr("int", -6, 5)
SIZE = Attr("int", 1, 4096)
INDEX = Attr("int", 0, 4096)
SHAPE = Attr("ints", 0, 4096)
PROBABILITY = Attr("float", 0.0, 1.0)
NUMBER = Attr("float", -1e6, 1e6)

Infer = Callable[[Sequence[Type], Attributes], list[Type]]


@dataclass(frozen=True)
class Op:
    """One op of the vocabulary.

    ``code`` is a format string over the positional arguments and the attributes; ``{args}`` stands for all
    arguments, comma-separated, and ``{rest}`` for all but the first. ``source`` defines a function that
    ``code`` calls; ``imports`` is a line that it needs. ``weight`` and ``bias`` are argument positions of a
    GEMM consumer, whose output channels are dimension ``channel`` of the weight. ``reads`` is empty where
    only shapes are read. ``stops`` is the stage at which ExecuTorch 1.5.1 has no way on: ``lower`` where the
    op is none of Core ATen, ``run`` where no portable kernel ships. ``float64`` is false where the op has no
    float64 form, so that eager itself is the reference.
    """

    name: str
    family: str
    code: str
    infer: Infer
    arity: tuple[int, int] = (1, 1)
    attrs: dict[str, Attr] = field(default_factory=dict)
    effect: Effect = Effect.PURE
    weight: int | None = None
    bias: int | None = None
    channel: int = 0
    reads: tuple[int, ...] | None = None
    source: str = ""
    imports: str = ""
    stops: Literal["", "lower", "run"] = ""
    float64: bool = True


@dataclass(frozen=True)
class LayerKind:
    """One ``torch.nn`` layer: how it is built, what it gives, the shapes of the tensors it owns.

    ``gemm``: XNNPACK takes it only if its weight is stored.
    """

    name: str
    code: str
    attrs: dict[str, Attr]
    infer: Callable[[Type, Attributes], Type]
    weight: Callable[[Attributes], tuple[int, ...]]
    bias: Callable[[Attributes], tuple[int, ...] | None]
    check: Callable[[Attributes], None] = lambda attrs: None
    gemm: bool = True


@dataclass(frozen=True)
class ParametrizationKind:
    """One parametrization: the statement that registers it, the class it needs, the bytes it reads.

    ``code`` may use ``{layer}``, ``{target}`` and ``{shape}``; ``source`` is the class definition of a
    user-written one and ``call`` the expression that makes one, which is what can be shared. ``stored`` gives
    the elements of the tensors that the parametrized value is computed from. ``first``: torch can register
    it only before any other parametrization of that tensor; ``alone``: only without any other. ``trained``:
    the buffers that it writes in training mode.
    """

    name: str
    sentence: str
    code: str
    stored: Callable[[tuple[int, ...]], int]
    source: str = ""
    call: str = ""
    admits: Callable[[tuple[int, ...]], bool] = lambda shape: True
    first: bool = False
    alone: bool = False
    trained: tuple[str, ...] = ()


OPS: dict[str, Op] = {}
LAYERS: dict[str, LayerKind] = {}
PARAMETRIZATIONS: dict[str, ParametrizationKind] = {}


def add_op(op: Op) -> None:
    """Adds ``op`` to the vocabulary; a name is taken once."""
    assert op.name not in OPS, op.name
    OPS[op.name] = op


def layer_weight(layer: Layer) -> Type:
    """Type of the layer's (computed) weight."""
    return Type(LAYERS[layer.kind].weight(layer.attrs))


def layer_bias(layer: Layer) -> Type | None:
    """Type of the layer's bias, None where it has none."""
    shape = LAYERS[layer.kind].bias(layer.attrs)
    return None if shape is None else Type(shape)


# Type rules that several families share.


def same(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """The type of argument 0."""
    return [types[0]]


def broadcast(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """The broadcast shape of float32 arguments (NumPy's rule)."""
    floats(types)
    return [Type(broadcast_shapes([item.shape for item in types]))]


def floats(types: Sequence[Type]) -> None:
    """Raises ``TypeRuleError`` unless all of ``types`` are float32."""
    for item in types:
        expect(item.dtype == "float32", "float32 arguments", item)


def number(attrs: Attributes, name: str) -> int:
    """The attribute ``name`` as an int."""
    return int(attrs[name])  # type: ignore[arg-type]


def shaped(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """float32 of the attribute ``shape``."""
    return [Type(tuple(attrs["shape"]))]  # type: ignore[arg-type]


def same_float(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """The type of argument 0, which is float32."""
    floats(types[:1])
    return [types[0]]


def broadcast_shapes(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """NumPy's broadcast of ``shapes``; raises ``TypeRuleError`` where they do not agree."""
    rank = max(len(shape) for shape in shapes)
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        wide = {size for size in sizes if size != 1}
        expect(len(wide) <= 1, "shapes that broadcast", " and ".join(str(list(s)) for s in shapes))
        result.append(wide.pop() if wide else 1)
    return tuple(result)


def dim_of(shape: tuple[int, ...], attrs: Attributes, name: str = "dim") -> int:
    """The attribute ``name`` as a non-negative dimension of ``shape``."""
    dim = int(attrs[name])  # type: ignore[arg-type]
    expect(-len(shape) <= dim < len(shape), f"{name} within {len(shape)} dimensions", dim)
    return dim % len(shape)


def with_dim(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    """``shape`` with dimension ``dim`` set to ``size``."""
    return (*shape[:dim], size, *shape[dim + 1 :])

"""Family ``parametrizations``: weights that are computed from parameters.

Three sources: ``torch.nn.utils.parametrize`` on a layer, the user's own parametrization modules, and
expressions over parameters written out in ``forward``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from generators.builder import Builder
from generators.members import Shape, named, weight
from generators.program import Attributes, Parametrization, Target
from generators.vocabulary import (
    DIM,
    INDEX,
    PARAMETRIZATIONS,
    SHAPE,
    SIZE,
    Effect,
    Op,
    ParametrizationKind,
    Type,
    add_op,
    dim_of,
    expect,
    with_dim,
)

FAMILY = "parametrizations"


def _transpose(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(len(types[0].shape) == 2, "two dimensions", types[0])
    return [Type(types[0].shape[::-1], types[0].dtype)]


def _narrow(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim = dim_of(types[0].shape, attrs)
    start, length = int(attrs["start"]), int(attrs["length"])  # type: ignore[arg-type]
    expect(start + length <= types[0].shape[dim], f"at most {types[0].shape[dim]}", start + length)
    return [Type(with_dim(types[0].shape, dim, length), types[0].dtype)]


def _chunk(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim, chunks = dim_of(types[0].shape, attrs), int(attrs["chunks"])  # type: ignore[arg-type]
    size = types[0].shape[dim]
    expect(size % chunks == 0, f"a dimension divisible by chunks={chunks}", size)
    return [Type(with_dim(types[0].shape, dim, size // chunks), types[0].dtype)] * chunks


def _cat(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim = dim_of(types[0].shape, attrs)
    for item in types[1:]:
        aligned = with_dim(item.shape, dim, types[0].shape[dim]) if item.shape else ()
        expect(aligned == types[0].shape, f"parts that agree with {types[0]} outside dim {dim}", item)
    total = sum(item.shape[dim] for item in types)
    return [Type(with_dim(types[0].shape, dim, total), types[0].dtype)]


def _reshape(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    shape: tuple[int, ...] = tuple(attrs["shape"])  # type: ignore[arg-type]
    expect(math.prod(shape) == types[0].elements, f"{types[0].elements} elements", list(shape))
    return [Type(shape, types[0].dtype)]


def _half(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "float32", "a float32 argument", types[0])
    return [Type(types[0].shape, "float16")]


def _float(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "float16", "a float16 argument", types[0])
    return [Type(types[0].shape, "float32")]


def _flip(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim_of(types[0].shape, attrs)
    return [types[0]]


def _matrix(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(len(types[0].shape) == 2, "two dimensions", types[0])
    return [types[0]]


for op in (
    Op("t", FAMILY, "{0}.t()", _transpose, effect=Effect.VIEW),
    Op(
        "narrow",
        FAMILY,
        "{0}.narrow({dim}, {start}, {length})",
        _narrow,
        attrs={"dim": DIM, "start": INDEX, "length": SIZE},
        effect=Effect.VIEW,
    ),
    Op(
        "chunk",
        FAMILY,
        "{0}.chunk({chunks}, {dim})",
        _chunk,
        attrs={"chunks": SIZE, "dim": DIM},
        effect=Effect.VIEW,
    ),
    Op("cat", FAMILY, "torch.cat(({args},), {dim})", _cat, (1, 8), {"dim": DIM}),
    Op(
        "reshape",
        FAMILY,
        "{0}.reshape({shape})",
        _reshape,
        attrs={"shape": SHAPE},
        effect=Effect.MAYBE_VIEW,
    ),
    Op("half", FAMILY, "{0}.to(torch.float16)", _half),
    Op("float", FAMILY, "{0}.to(torch.float32)", _float),
    Op("flip", FAMILY, "{0}.flip({dim})", _flip, attrs={"dim": DIM}),
    Op("tril", FAMILY, "torch.tril({0})", _matrix),
    Op("softplus", FAMILY, "F.softplus({0})", lambda types, attrs: [types[0]]),
):
    add_op(op)


SCALE = """class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, tensor):
        return tensor * self.scale"""
SOFTPLUS = """class Softplus(nn.Module):
    def forward(self, tensor):
        return F.softplus(tensor)"""
GATE = """class Gate(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(shape))

    def forward(self, tensor):
        return tensor * torch.sigmoid(self.gate)"""


def _own(name: str, sentence: str, source: str, call: str, stored: int) -> ParametrizationKind:
    return ParametrizationKind(
        name,
        sentence,
        f"parametrize.register_parametrization(self.{{layer}}, '{{target}}', {call})",
        lambda shape: stored * math.prod(shape) + 1,
        source,
    )


def _parametrize(name: str) -> Callable[[Builder, Target], Parametrization]:
    return lambda b, target: Parametrization(name, target)


for kind in (
    ParametrizationKind(
        "weight_norm",
        "torch's weight_norm over dimension 0.",
        "parametrizations.weight_norm(self.{layer}, '{target}')",
        lambda shape: math.prod(shape) + shape[0],
        admits=lambda shape: len(shape) > 1,
        first=True,
    ),
    ParametrizationKind(
        "spectral_norm",
        "torch's spectral_norm in eval mode: reads two buffers that nothing writes.",
        "parametrizations.spectral_norm(self.{layer}, '{target}')",
        lambda shape: math.prod(shape) + shape[0] + math.prod(shape[1:]),
        admits=lambda shape: len(shape) > 1,
    ),
    ParametrizationKind(
        "orthogonal",
        "torch's orthogonal by Householder reflections.",
        "parametrizations.orthogonal(self.{layer}, '{target}', orthogonal_map='householder')",
        lambda shape: 2 * math.prod(shape),
        admits=lambda shape: len(shape) == 2,
        first=True,
    ),
    _own("scale", "A user's: times a scalar parameter.", SCALE, "Scale()", 1),
    _own(
        "softplus",
        "A user's: softplus, a function without tensors of its own.",
        SOFTPLUS,
        "Softplus()",
        1,
    ),
    _own("gate", "A user's: times the sigmoid of a second parameter.", GATE, "Gate({shape})", 2),
):
    PARAMETRIZATIONS[kind.name] = kind
    named("layer", FAMILY, kind.name, kind.sentence, kind.admits, _parametrize(kind.name))


@weight(FAMILY, "parameter")
def draw_parameter(b: Builder, shape: Shape, depth: int) -> str:
    """A plain parameter: static, nothing to fold."""
    return b.tensor("parameter", shape)


@weight(FAMILY, "transpose", lambda shape: len(shape) == 2)
def draw_transpose(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored transposed and read through ``t()``."""
    return b.step("t", b.weight(shape[::-1], depth))


@weight(FAMILY, "slice", lambda shape: len(shape) > 0)
def draw_slice(b: Builder, shape: Shape, depth: int) -> str:
    """A part of a longer weight, not from its start."""
    extra = b.integer(1, 4)
    longer = b.weight(with_dim(shape, 0, shape[0] + extra), depth)
    return b.step("narrow", longer, dim=0, start=extra, length=shape[0])


@weight(FAMILY, "chunk", lambda shape: len(shape) > 0)
def draw_chunk(b: Builder, shape: Shape, depth: int) -> str:
    """One chunk of a packed weight; the other chunks are not used."""
    chunks = b.integer(2, 3)
    packed = b.weight(with_dim(shape, 0, chunks * shape[0]), depth)
    return b.pick(b.steps("chunk", packed, chunks=chunks, dim=0)[::-1])


@weight(FAMILY, "lora", lambda shape: len(shape) == 2)
def draw_lora(b: Builder, shape: Shape, depth: int) -> str:
    """A low-rank update merged into its base: ``w + up @ down``."""
    base = b.weight(shape, depth)
    up, down = b.tensor("parameter", (shape[0], 2)), b.tensor("parameter", (2, shape[1]))
    return b.step("add", base, b.step("mm", up, down))


@weight(FAMILY, "cat", lambda shape: len(shape) > 0 and shape[0] > 1)
def draw_cat(b: Builder, shape: Shape, depth: int) -> str:
    """Two parts put together along dimension 0."""
    first = b.integer(1, shape[0] - 1)
    parts = [b.weight(with_dim(shape, 0, size), depth) for size in (first, shape[0] - first)]
    return b.step("cat", *parts, dim=0)


@weight(FAMILY, "scaled")
def draw_scaled(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a scalar parameter or inline constant."""
    role = b.pick(["parameter", "constant"])
    return b.step("mul", b.weight(shape, depth), b.tensor(role, ()))


@weight(FAMILY, "half", lambda shape: len(shape) > 0)
def draw_half(b: Builder, shape: Shape, depth: int) -> str:
    """A round trip through float16."""
    return b.step("float", b.step("half", b.weight(shape, depth)))


@weight(FAMILY, "flip", lambda shape: len(shape) > 0)
def draw_flip(b: Builder, shape: Shape, depth: int) -> str:
    """A weight reversed along its last dimension."""
    return b.step("flip", b.weight(shape, depth), dim=len(shape) - 1)


@weight(FAMILY, "tril", lambda shape: len(shape) == 2)
def draw_tril(b: Builder, shape: Shape, depth: int) -> str:
    """The lower triangle of a weight."""
    return b.step("tril", b.weight(shape, depth))


@weight(FAMILY, "reshape", lambda shape: len(shape) > 1)
def draw_reshape(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored flat and given its shape in ``forward``."""
    return b.step("reshape", b.weight((math.prod(shape),), depth), shape=shape)


@weight(FAMILY, "buffer-mask")
def draw_buffer_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a mask that is a buffer which nothing writes."""
    return b.step("mul", b.weight(shape, depth), b.tensor("buffer", shape))

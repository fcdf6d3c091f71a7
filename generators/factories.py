"""Family ``factories``: ops that make a tensor out of no data, as activations, masks and weights.

A *scalar fill* (full, ones, zeros, their ``new_`` and ``_like`` forms) costs a few bytes as an op and its
whole size as a stored tensor, which is why a fold must leave it an op.
"""

from __future__ import annotations

from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, block, weight
from generators.program import Attributes
from generators.vocabulary import NUMBER, SHAPE, SIZE, Effect, Op, Type, add_op

FAMILY = "factories"


def _shape(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type(tuple(attrs["shape"]))]  # type: ignore[arg-type]


def _like(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [types[0]]


def _arange(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type((int(attrs["n"]),))]  # type: ignore[arg-type]


def _eye(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type((int(attrs["n"]), int(attrs["m"])))]  # type: ignore[arg-type]


VALUE = {"value": NUMBER}
for op in (
    Op(
        "full",
        FAMILY,
        "torch.full({shape}, {value})",
        _shape,
        (0, 0),
        {"shape": SHAPE, **VALUE},
        Effect.FILL,
    ),
    Op("ones", FAMILY, "torch.ones({shape})", _shape, (0, 0), {"shape": SHAPE}, Effect.FILL),
    Op("zeros", FAMILY, "torch.zeros({shape})", _shape, (0, 0), {"shape": SHAPE}, Effect.FILL),
    Op("ones_like", FAMILY, "torch.ones_like({0})", _like, effect=Effect.FILL, reads=()),
    Op("zeros_like", FAMILY, "torch.zeros_like({0})", _like, effect=Effect.FILL, reads=()),
    Op(
        "full_like",
        FAMILY,
        "torch.full_like({0}, {value})",
        _like,
        (1, 1),
        VALUE,
        Effect.FILL,
        reads=(),
    ),
    Op(
        "new_ones",
        FAMILY,
        "{0}.new_ones({shape})",
        _shape,
        (1, 1),
        {"shape": SHAPE},
        Effect.FILL,
        reads=(),
    ),
    Op(
        "new_zeros",
        FAMILY,
        "{0}.new_zeros({shape})",
        _shape,
        (1, 1),
        {"shape": SHAPE},
        Effect.FILL,
        reads=(),
    ),
    Op(
        "new_full",
        FAMILY,
        "{0}.new_full({shape}, {value})",
        _shape,
        (1, 1),
        {"shape": SHAPE, **VALUE},
        Effect.FILL,
        reads=(),
    ),
    Op("arange", FAMILY, "torch.arange({n}.0)", _arange, (0, 0), {"n": SIZE}, Effect.FACTORY),
    Op("eye", FAMILY, "torch.eye({n}, {m})", _eye, (0, 0), {"n": SIZE, "m": SIZE}, Effect.FACTORY),
):
    add_op(op)


def _fill(b: Builder, shape: Shape, like: str) -> str:
    """A scalar fill of ``shape``; the ``_like`` and ``new_`` forms take after ``like``."""
    op = b.pick(["ones", "full", "zeros", "ones_like", "full_like", "new_ones", "new_full"])
    attrs: dict[str, object] = {} if op.endswith("_like") else {"shape": shape}
    if "full" in op:
        attrs["value"] = b.pick([0.5, -2.0])
    return b.step(op, *([like] if "_like" in op or "new_" in op else []), **attrs)


@block(FAMILY, "fill")
def draw_fill(b: Builder, x: str) -> str:
    """A scalar fill added to the activation."""
    return b.step("add", x, _fill(b, b.shape(x), x))


@block(FAMILY, "arange")
def draw_arange(b: Builder, x: str) -> str:
    """An arange over the last dimension added to the activation."""
    return b.step("add", x, b.step("arange", n=b.shape(x)[-1]))


@weight(FAMILY, "fill-mask")
def draw_fill_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a scalar fill of its own shape."""
    inner = b.weight(shape, depth)
    return b.step("mul", inner, _fill(b, shape, inner))


@weight(FAMILY, "causal-mask", lambda shape: len(shape) == 2)
def draw_causal_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a lower-triangular mask of ones."""
    return b.step("mul", b.weight(shape, depth), b.step("tril", b.step("ones", shape=shape)))


@weight(FAMILY, "fill-weight")
def draw_fill_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that is a scalar fill and nothing else."""
    return b.step("full", shape=shape, value=0.25)


@weight(FAMILY, "eye", lambda shape: len(shape) == 2)
def draw_eye(b: Builder, shape: Shape, depth: int) -> str:
    """A weight plus the identity: a residual connection merged into it."""
    return b.step("add", b.weight(shape, depth), b.step("eye", n=shape[0], m=shape[1]))


@block(FAMILY, "fill-output")
def draw_fill_output(b: Builder, x: str) -> str:
    """A scalar fill that is an output of its own."""
    b.extra_outputs.append(_fill(b, (4,), x))
    return x

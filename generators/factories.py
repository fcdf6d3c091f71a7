"""Family ``factories``: ops that make a tensor out of no data, as activations, masks and weights.

A *scalar fill* (full, ones, zeros, their ``new_`` and ``_like`` forms) costs a few bytes as an op and its
whole size as a stored tensor, which is why a fold must leave it an op.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from generators.builder import Builder
from generators.members import Member, Shape, any_shape, block, named, rank, ranked, weight
from generators.program import Attributes
from generators.vocabulary import NUMBER, SHAPE, SIZE, Effect, Op, Type, add_op, number, shaped

FAMILY = "factories"


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
        shaped,
        (0, 0),
        {"shape": SHAPE, **VALUE},
        Effect.FILL,
    ),
    Op("ones", FAMILY, "torch.ones({shape})", shaped, (0, 0), {"shape": SHAPE}, Effect.FILL),
    Op("zeros", FAMILY, "torch.zeros({shape})", shaped, (0, 0), {"shape": SHAPE}, Effect.FILL),
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
        shaped,
        (1, 1),
        {"shape": SHAPE},
        Effect.FILL,
        reads=(),
    ),
    Op(
        "new_zeros",
        FAMILY,
        "{0}.new_zeros({shape})",
        shaped,
        (1, 1),
        {"shape": SHAPE},
        Effect.FILL,
        reads=(),
    ),
    Op(
        "new_full",
        FAMILY,
        "{0}.new_full({shape}, {value})",
        shaped,
        (1, 1),
        {"shape": SHAPE, **VALUE},
        Effect.FILL,
        reads=(),
    ),
    Op("arange", FAMILY, "torch.arange({n}.0)", _arange, (0, 0), {"n": SIZE}, Effect.FACTORY),
    Op("eye", FAMILY, "torch.eye({n}, {m})", _eye, (0, 0), {"n": SIZE, "m": SIZE}, Effect.FACTORY),
):
    add_op(op)


def _linspace(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type((number(attrs, "n"),))]


for op in (
    Op("empty_fill", FAMILY, "torch.empty({shape}).fill_({value})", shaped, (0, 0),
       {"shape": SHAPE, **VALUE}, Effect.FILL),
    Op("linspace", FAMILY, "torch.linspace(-1, 1, {n})", _linspace, (0, 0), {"n": SIZE}, Effect.FACTORY),
    Op("scalar_tensor", FAMILY, "torch.scalar_tensor({value})", lambda types, attrs: [Type(())], (0, 0),
       VALUE, Effect.FILL),
    Op("tril_indices", FAMILY, "torch.tril_indices({n}, {n})[1, :{n}].to(torch.float32)", _linspace, (0, 0),
       {"n": SIZE}, Effect.FACTORY, stops="lower"),
):  # fmt: skip
    add_op(op)

FILLS = (
    "ones", "full", "zeros", "empty_fill", "ones_like", "full_like", "zeros_like", "new_ones", "new_full",
    "new_zeros",
)  # fmt: skip
LARGE = 64


def _fill(b: Builder, op: str, shape: Shape, like: str) -> str:
    """A scalar fill of ``shape``; the ``_like`` and ``new_`` forms take after ``like``."""
    attrs: dict[str, object] = {} if op.endswith("_like") else {"shape": shape}
    if "full" in op or "fill" in op:
        attrs["value"] = b.pick([0.5, -2.0])
    return b.step(op, *([like] if "_like" in op or "new_" in op else []), **attrs)


def _into_weight(op: str) -> Callable[[Builder, Shape, int], str]:
    def draw(b: Builder, shape: Shape, depth: int) -> str:
        inner = b.weight(shape, depth)
        # Times zero nothing would be left to compare.
        combine = "add" if "zeros" in op else b.pick(["mul", "add"])
        return b.step(combine, inner, _fill(b, op, shape, inner))

    return draw


for name in FILLS:
    sentence = f"A weight times, or plus, a scalar fill by ``{name}``."
    named(Member(name.replace("_", "-"), FAMILY, "weight", sentence, _into_weight(name), any_shape))


@block(FAMILY, "fill", static=True)
def draw_fill(b: Builder, x: str) -> str:
    """A scalar fill added to the activation."""
    return b.step("add", x, _fill(b, b.pick(FILLS), b.shape(x), x))


@block(FAMILY, "large-fill", lambda shape: len(shape) > 1)
def draw_large_fill(b: Builder, x: str) -> str:
    """A linear whose weight is scaled by a large scalar fill: thousands of bytes if it were stored."""
    shape = (LARGE, b.shape(x)[-1])
    return b.step("linear", x, b.step("mul", b.tensor("parameter", shape), _fill(b, "full", shape, x)))


@block(FAMILY, "arange")
def draw_arange(b: Builder, x: str) -> str:
    """An arange over the last dimension added to the activation."""
    return b.step("add", x, b.step("arange", n=b.shape(x)[-1]))


@block(FAMILY, "linspace")
def draw_linspace(b: Builder, x: str) -> str:
    """A linspace over the last dimension times the activation."""
    return b.step("mul", x, b.step("linspace", n=b.shape(x)[-1]))


@weight(FAMILY, "linspace-weight", ranked)
def draw_linspace_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a linspace over its last dimension."""
    return b.step("mul", b.weight(shape, depth), b.step("linspace", n=shape[-1]))


@weight(FAMILY, "scalar-tensor")
def draw_scalar_tensor(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a tensor made of a Python number."""
    return b.step("mul", b.weight(shape, depth), b.step("scalar_tensor", value=2.0))


@weight(FAMILY, "tril-indices", ranked, often=3)
def draw_tril_indices(b: Builder, shape: Shape, depth: int) -> str:
    """A weight plus indices of a triangle, which ExecuTorch has no op for."""
    return b.step("add", b.weight(shape, depth), b.step("tril_indices", n=shape[-1]))


@weight(FAMILY, "causal-mask", rank(2))
def draw_causal_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a lower-triangular mask of ones."""
    return b.step("mul", b.weight(shape, depth), b.step("tril", b.step("ones", shape=shape)))


@weight(FAMILY, "fill-weight")
def draw_fill_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that is a scalar fill and nothing else."""
    return b.step("full", shape=shape, value=0.25)


@weight(FAMILY, "eye", rank(2))
def draw_eye(b: Builder, shape: Shape, depth: int) -> str:
    """A weight plus the identity: a residual connection merged into it."""
    return b.step("add", b.weight(shape, depth), b.step("eye", n=shape[0], m=shape[1]))


@block(FAMILY, "fill-output")
def draw_fill_output(b: Builder, x: str) -> str:
    """A scalar fill that is an output of its own."""
    b.extra_outputs.append(_fill(b, b.pick(FILLS), (4,), x))
    return x

"""Family ``randomness``: ops that draw anew on every call, on activations and in weights.

Of these only ``rand``, ``randn`` and dropout (``native_dropout``) have portable kernels in ExecuTorch
1.5.1; a program with another one is judged up to lowering and not run.
"""

from __future__ import annotations

from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, block, weight
from generators.program import Attributes
from generators.vocabulary import SHAPE, Attr, Effect, Op, Type, add_op

FAMILY = "randomness"


def _shape(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type(tuple(attrs["shape"]))]  # type: ignore[arg-type]


def _like(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [types[0]]


P = {"p": Attr("float", 0.0, 1.0)}
for op in (
    Op("rand", FAMILY, "torch.rand({shape})", _shape, (0, 0), {"shape": SHAPE}, Effect.RANDOM),
    Op("randn", FAMILY, "torch.randn({shape})", _shape, (0, 0), {"shape": SHAPE}, Effect.RANDOM),
    Op(
        "rand_like",
        FAMILY,
        "torch.rand_like({0})",
        _like,
        effect=Effect.RANDOM,
        reads=(),
        kernel=False,
    ),
    Op(
        "dropout",
        FAMILY,
        "F.dropout({0}, {p}, training=True)",
        _like,
        attrs=P,
        effect=Effect.RANDOM,
    ),
    Op(
        "bernoulli",
        FAMILY,
        "torch.bernoulli(torch.sigmoid({0}))",
        _like,
        effect=Effect.RANDOM,
        kernel=False,
    ),
):
    add_op(op)


def _noise(b: Builder, shape: Shape, like: str) -> str:
    """A random draw of ``shape``. The ops without a kernel come up rarely: they cannot be run."""
    op = b.pick(["rand", "randn", "rand", "randn", "rand", "randn", "rand_like"])
    return b.step(op, like) if op == "rand_like" else b.step(op, shape=shape)


@block(FAMILY, "noise")
def draw_noise(b: Builder, x: str) -> str:
    """Noise added to the activation, which is returned without the noise as well."""
    b.extra_outputs.append(x)
    return b.step("add", x, _noise(b, b.shape(x), x))


@block(FAMILY, "noise-output")
def draw_noise_output(b: Builder, x: str) -> str:
    """Noise that is an output of its own, beside an activation that does not depend on it."""
    b.extra_outputs.append(b.step("randn", shape=(4,)))
    return x


@block(FAMILY, "dropout")
def draw_dropout(b: Builder, x: str) -> str:
    """Dropout in training mode on the activation."""
    b.extra_outputs.append(x)
    return b.step("dropout", x, p=0.5)


@weight(FAMILY, "drop-connect")
def draw_drop_connect(b: Builder, shape: Shape, depth: int) -> str:
    """Dropout in training mode on a weight: another weight on every call."""
    return b.step("dropout", b.weight(shape, depth), p=0.5)


@weight(FAMILY, "noisy-weight")
def draw_noisy_weight(b: Builder, shape: Shape, depth: int) -> str:
    """Noise added to a weight."""
    return b.step("add", b.weight(shape, depth), b.step("randn", shape=shape))


@weight(FAMILY, "random-mask")
def draw_random_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a mask drawn with Bernoulli probabilities from a parameter."""
    inner = b.weight(shape, depth)
    return b.step("mul", inner, b.step("bernoulli", inner))

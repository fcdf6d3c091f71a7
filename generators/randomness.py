"""Family ``randomness``: ops that draw anew on every call, on activations and in weights.

Of these only ``rand``, ``randn`` and dropout (``native_dropout``) have portable kernels in ExecuTorch
1.5.1; a program with another one is judged up to lowering and not run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from generators.builder import Builder
from generators.members import Member, Shape, block, named, ranked, weight
from generators.program import Attributes
from generators.vocabulary import PROBABILITY, SHAPE, SIZE, Effect, Op, Type, add_op, number, shaped

FAMILY = "randomness"


def _like(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [types[0]]


def _picks(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type((number(attrs, "n"),))]


RANDOM = Effect.RANDOM
SHAPED, COUNTED = {"shape": SHAPE}, {"n": SIZE}
for op in (
    Op("rand", FAMILY, "torch.rand({shape})", shaped, (0, 0), SHAPED, RANDOM),
    Op("randn", FAMILY, "torch.randn({shape})", shaped, (0, 0), SHAPED, RANDOM),
    Op("rand_like", FAMILY, "torch.rand_like({0})", _like, effect=RANDOM, reads=(), stops="lower"),
    Op("randn_like", FAMILY, "torch.randn_like({0})", _like, effect=RANDOM, reads=(), stops="lower"),
    Op("randint", FAMILY, "torch.randint(1, 9, {shape}).to(torch.float32)", shaped, (0, 0), SHAPED, RANDOM,
       stops="lower"),
    Op("normal", FAMILY, "torch.normal(0.0, 1.0, {shape})", shaped, (0, 0), SHAPED, RANDOM, stops="lower"),
    Op("randperm", FAMILY, "torch.randperm({n}).to(torch.float32)", _picks, (0, 0), COUNTED, RANDOM,
       stops="run"),
    Op("multinomial", FAMILY, "torch.multinomial(torch.ones(9), {n}, True).to(torch.float32)", _picks, (0, 0),
       COUNTED, RANDOM, stops="lower"),
    Op("dropout", FAMILY, "F.dropout({0}, {p}, training=True)", _like, (1, 1), {"p": PROBABILITY}, RANDOM),
    Op("bernoulli", FAMILY, "torch.bernoulli(torch.sigmoid({0}))", _like, effect=RANDOM),
):  # fmt: skip
    add_op(op)

RUNNABLE = ("rand", "randn")
DRAWS = (*RUNNABLE, "rand_like", "randn_like", "randint", "normal", "randperm", "multinomial")


def _noise(b: Builder, op: str, shape: Shape, like: str) -> str:
    """A random draw that broadcasts to ``shape``."""
    if op in ("randperm", "multinomial"):
        return b.step(op, n=shape[-1])
    return b.step(op, like) if op.endswith("_like") else b.step(op, shape=shape)


def _on_activation(op: str) -> Callable[[Builder, str], str]:
    def draw(b: Builder, x: str) -> str:
        b.extra_outputs.append(x)
        return b.step("add", x, _noise(b, op, b.shape(x), x))

    return draw


for name in DRAWS:
    named(
        Member(
            name.replace("_", "-"),
            FAMILY,
            "block",
            f"``{name}`` added to the activation, which is returned without it as well.",
            _on_activation(name),
            ranked,
            often=4 if name in RUNNABLE else 3,
            static=True,
            excludes=frozenset({"joint"}),
        )
    )


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


@weight(FAMILY, "noisy-weight", ranked)
def draw_noisy_weight(b: Builder, shape: Shape, depth: int) -> str:
    """Noise added to a weight."""
    op = b.pick([*RUNNABLE * 4, *DRAWS])
    inner = b.weight(shape, depth)
    return b.step("add", inner, _noise(b, op, shape, inner))


@weight(FAMILY, "random-mask")
def draw_random_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a mask drawn with Bernoulli probabilities from a parameter."""
    inner = b.weight(shape, depth)
    return b.step("mul", inner, b.step("bernoulli", inner))

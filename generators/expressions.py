"""Family ``expressions``: weights that are computed from parameters by ops written out in ``forward``."""

from __future__ import annotations

import math
from collections.abc import Callable

from generators.builder import Builder
from generators.expression_ops import FAMILY
from generators.members import Member, Shape, any_shape, named, rank, ranked, weight
from generators.vocabulary import with_dim


def _through(*ops: str, along: bool = False) -> Callable[[Builder, Shape, int], str]:
    """Draws a weight that passes through ``ops`` in turn, ``along`` a drawn dimension."""

    def draw(b: Builder, shape: Shape, depth: int) -> str:
        value = b.weight(shape, depth)
        attrs = {"dim": b.integer(0, len(shape) - 1)} if along else {}
        for op in ops:
            value = b.step(op, value, **attrs)
        return value

    return draw


for name, sentence, draw in (
    ("clone", "A clone of a weight.", _through("clone")),
    ("detach", "A detached weight.", _through("detach")),
    ("alias", "An alias of a weight.", _through("alias")),
    ("positive", "The softplus of a weight.", _through("softplus")),
    ("half", "A round trip through float16.", _through("half", "float")),
    ("double", "A round trip through float64.", _through("double", "float_from_double")),
    ("bfloat", "A round trip through bfloat16.", _through("bfloat", "float_from_bfloat")),
):
    named(Member(name, FAMILY, "weight", sentence, draw, any_shape))
for name, sentence in (
    ("normalized", "A weight divided by its norm along a dimension."),
    ("standardized", "A weight of mean 0 and variance 1 along a dimension."),
    ("centered", "A weight less its mean along a dimension."),
):
    named(Member(name, FAMILY, "weight", sentence, _through(name, along=True), ranked))


@weight(FAMILY, "transpose", rank(2))
def draw_transpose(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored transposed and read through ``t()``."""
    return b.step("t", b.weight(shape[::-1], depth))


@weight(FAMILY, "permute", lambda shape: len(shape) > 1)
def draw_permute(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored with its dimensions in reverse order."""
    return b.step("permute", b.weight(shape[::-1], depth), dims=tuple(reversed(range(len(shape)))))


@weight(FAMILY, "slice", ranked, often=10)
def draw_slice(b: Builder, shape: Shape, depth: int) -> str:
    """A part of a longer weight, not from its start."""
    extra = b.integer(1, 4)
    longer = b.weight(with_dim(shape, 0, shape[0] + extra), depth)
    return b.step("narrow", longer, dim=0, start=extra, length=shape[0])


@weight(FAMILY, "select")
def draw_select(b: Builder, shape: Shape, depth: int) -> str:
    """One of several weights that are stored as one."""
    return b.step("select", b.weight((3, *shape), depth), dim=0, index=b.integer(1, 2))


@weight(FAMILY, "chunk", ranked, often=10)
def draw_chunk(b: Builder, shape: Shape, depth: int) -> str:
    """One chunk of a packed weight; the other chunks are not used."""
    chunks = b.integer(2, 3)
    packed = b.weight(with_dim(shape, 0, chunks * shape[0]), depth)
    return b.pick(b.steps("chunk", packed, chunks=chunks, dim=0)[::-1])


@weight(FAMILY, "split", ranked, often=10)
def draw_split(b: Builder, shape: Shape, depth: int) -> str:
    """One part of a weight that is split into parts of different sizes."""
    packed = b.weight(with_dim(shape, 0, shape[0] + 2), depth)
    return b.steps("split", packed, sizes=(2, shape[0]), dim=0)[1]


@weight(FAMILY, "unbind")
def draw_unbind(b: Builder, shape: Shape, depth: int) -> str:
    """The sum of all slices of a stacked weight."""
    first, second = b.steps("unbind", b.weight((2, *shape), depth))
    return b.step("add", first, second)


@weight(FAMILY, "lora", rank(2))
def draw_lora(b: Builder, shape: Shape, depth: int) -> str:
    """A low-rank update merged into its base: ``w + up @ down``."""
    base = b.weight(shape, depth)
    up, down = b.tensor("parameter", (shape[0], 2)), b.tensor("parameter", (2, shape[1]))
    return b.step("add", base, b.step("mm", up, down))


@weight(FAMILY, "product", rank(2))
def draw_product(b: Builder, shape: Shape, depth: int) -> str:
    """The matrix product of two parameters."""
    return b.step("matmul", b.weight((shape[0], 3), depth), b.tensor("parameter", (3, shape[1])))


@weight(FAMILY, "weight-einsum", rank(2))
def draw_einsum(b: Builder, shape: Shape, depth: int) -> str:
    """The product of two parameters as an einsum."""
    return b.step("outer_einsum", b.weight((shape[0], 3), depth), b.tensor("parameter", (shape[1], 3)))


@weight(FAMILY, "cat", lambda shape: len(shape) > 0 and shape[0] > 1)
def draw_cat(b: Builder, shape: Shape, depth: int) -> str:
    """Two parts put together along dimension 0."""
    first = b.integer(1, shape[0] - 1)
    parts = [b.weight(with_dim(shape, 0, size), depth) for size in (first, shape[0] - first)]
    return b.step("cat", *parts, dim=0)


@weight(FAMILY, "stack", lambda shape: len(shape) > 0 and 0 < shape[0] < 9)
def draw_stack(b: Builder, shape: Shape, depth: int) -> str:
    """Rows stacked into a weight, one of them computed."""
    rows = [b.weight(shape[1:], depth), *(b.tensor("parameter", shape[1:]) for _ in range(shape[0] - 1))]
    return b.step("stack", *rows)


@weight(FAMILY, "scaled")
def draw_scaled(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a scalar parameter or inline constant."""
    role = b.pick(["parameter", "constant"])
    return b.step("mul", b.weight(shape, depth), b.tensor(role, ()))


@weight(FAMILY, "item", often=2)
def draw_item(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times the Python number of a scalar: ``item()``."""
    return b.step("by_item", b.weight(shape, depth), b.tensor("parameter", (), requires_grad=False))


@weight(FAMILY, "flip", ranked)
def draw_flip(b: Builder, shape: Shape, depth: int) -> str:
    """A weight reversed along its last dimension."""
    return b.step("flip", b.weight(shape, depth), dim=len(shape) - 1)


@weight(FAMILY, "roll", ranked)
def draw_roll(b: Builder, shape: Shape, depth: int) -> str:
    """A weight rolled by one along dimension 0."""
    return b.step("roll", b.weight(shape, depth), dim=0)


@weight(FAMILY, "tril", rank(2))
def draw_tril(b: Builder, shape: Shape, depth: int) -> str:
    """The lower or upper triangle of a weight."""
    return b.step(b.pick(["tril", "triu"]), b.weight(shape, depth))


@weight(FAMILY, "reshape", lambda shape: len(shape) > 1)
def draw_reshape(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored flat and given its shape in ``forward``."""
    return b.step("reshape", b.weight((math.prod(shape),), depth), shape=shape)


@weight(FAMILY, "expand", ranked)
def draw_expand(b: Builder, shape: Shape, depth: int) -> str:
    """One row expanded to a whole weight, times a parameter."""
    row = b.step("expand", b.weight((1, *shape[1:]), depth), shape=shape)
    return b.step("mul", row, b.tensor("parameter", shape))


@weight(FAMILY, "repeat", lambda shape: len(shape) > 0 and shape[0] % 2 == 0)
def draw_repeat(b: Builder, shape: Shape, depth: int) -> str:
    """Half a weight, repeated."""
    return b.step("repeat", b.weight((shape[0] // 2, *shape[1:]), depth), times=2)


@weight(FAMILY, "index-select", ranked)
def draw_index_select(b: Builder, shape: Shape, depth: int) -> str:
    """Rows of a longer weight by an index that is an int64 buffer or constant."""
    longer = b.weight((shape[0] + 2, *shape[1:]), depth)
    role = b.pick(["buffer", "constant"]) if shape[0] <= 16 else "buffer"
    index = b.tensor(role, shape[:1], dtype="int64", high=shape[0] + 2)
    return b.step("index_select", longer, index)


@weight(FAMILY, "gather", ranked)
def draw_gather(b: Builder, shape: Shape, depth: int) -> str:
    """Elements of a longer weight by an int64 buffer of its shape."""
    longer = b.weight((shape[0] + 2, *shape[1:]), depth)
    return b.step("gather", longer, b.tensor("buffer", shape, dtype="int64", high=shape[0] + 2))


@weight(FAMILY, "contiguous", rank(2))
def draw_contiguous(b: Builder, shape: Shape, depth: int) -> str:
    """A transposed weight made contiguous."""
    return b.step("contiguous", b.step("t", b.weight(shape[::-1], depth)))


@weight(FAMILY, "channels-last", rank(4), often=3)
def draw_channels_last(b: Builder, shape: Shape, depth: int) -> str:
    """A weight brought into the channels_last memory format."""
    return b.step("channels_last", b.weight(shape, depth))


@weight(FAMILY, "deep-chain", often=2)
def draw_deep_chain(b: Builder, shape: Shape, depth: int) -> str:
    """A weight after hundreds of elementwise steps."""
    # PT2E quantizes after each of them: five times as many, which take a minute to lower.
    times = 40 if b.pt2e() else b.pick([100, 200])
    return b.step("chain", b.weight(shape, depth), times=times)


@weight(FAMILY, "many-paths", often=2)
def draw_many_paths(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that shared sub-expressions reach by exponentially many paths."""
    return b.step("doubled", b.weight(shape, depth), times=20 if b.pt2e() else 30)


@weight(FAMILY, "buffer-mask")
def draw_buffer_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a mask that is a buffer which nothing writes."""
    return b.step("mul", b.weight(shape, depth), b.tensor("buffer", shape))

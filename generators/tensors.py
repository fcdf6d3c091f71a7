"""Family ``tensors``: what kinds of tensor a module owns, how they lie in memory, and their sizes."""

from __future__ import annotations

from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, leaf, member, rank, ranked
from generators.program import Attributes
from generators.quantization import QUANTIZATIONS
from generators.vocabulary import Op, Type, add_op, expect

FAMILY = "tensors"
LARGEST_CONSTANT = 16


def _cast(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [Type(types[0].shape)]


def _where(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "bool", "a mask of bool", types[0])
    expect(types[0].shape == types[1].shape, f"a mask of shape {list(types[1].shape)}", types[0])
    return [types[1]]


for op in (
    Op("as_float", FAMILY, "{0}.to(torch.float32)", _cast),
    Op("where", FAMILY, "torch.where({0}, {1}, 0.5 * {1})", _where, (2, 2)),
):
    add_op(op)


@leaf(FAMILY, "parameter")
def draw_parameter(b: Builder, shape: Shape) -> str:
    """A plain parameter."""
    return b.tensor("parameter", shape)


@leaf(FAMILY, "buffer")
def draw_buffer(b: Builder, shape: Shape) -> str:
    """A persistent buffer that nothing writes, as or in a weight."""
    return b.tensor("buffer", shape)


@leaf(FAMILY, "transient-buffer")
def draw_transient_buffer(b: Builder, shape: Shape) -> str:
    """A buffer that is not persistent: exported as a constant and not in the state dict."""
    return b.tensor("buffer", shape, persistent=False)


@leaf(FAMILY, "inline-constant", lambda shape: len(shape) < 2 and Type(shape).elements <= LARGEST_CONSTANT)
def draw_inline_constant(b: Builder, shape: Shape) -> str:
    """A constant written out in ``forward``: ``torch.tensor([...])``."""
    return b.tensor("constant", shape)


@leaf(FAMILY, "frozen")
def draw_frozen(b: Builder, shape: Shape) -> str:
    """A parameter with ``requires_grad`` off."""
    return b.tensor("parameter", shape, requires_grad=False)


@leaf(FAMILY, "tied")
def draw_tied(b: Builder, shape: Shape) -> str:
    """One parameter under two names, both of which are read."""
    first = b.tensor("parameter", shape)
    return b.step("mul", first, b.tensor("parameter", shape, tied=first))


@leaf(FAMILY, "sliced-storage", ranked)
def draw_sliced(b: Builder, shape: Shape) -> str:
    """A parameter that is a part of a larger storage, not from its start."""
    return b.tensor("parameter", shape, layout="sliced")


@leaf(FAMILY, "strided-storage", ranked)
def draw_strided(b: Builder, shape: Shape) -> str:
    """A parameter that is every other row of a larger storage."""
    return b.tensor("parameter", shape, layout="strided")


@leaf(FAMILY, "transposed-storage", rank(2))
def draw_transposed(b: Builder, shape: Shape) -> str:
    """A parameter whose memory lies transposed."""
    return b.tensor("parameter", shape, layout="transposed")


@leaf(FAMILY, "expanded-storage", ranked)
def draw_expanded(b: Builder, shape: Shape) -> str:
    """A buffer of stride 0: one row seen many times."""
    return b.step("mul", b.tensor("parameter", shape), b.tensor("buffer", shape, layout="expanded"))


@leaf(FAMILY, "channels-last-storage", rank(4), often=3)
def draw_channels_last(b: Builder, shape: Shape) -> str:
    """A parameter in the channels_last memory format, as it is or scaled."""
    stored = b.tensor("parameter", shape, layout="channels_last")
    return b.step("mul", stored, b.tensor("parameter", ())) if b.pick([False, True, True]) else stored


@leaf(FAMILY, "half-stored")
def draw_half_stored(b: Builder, shape: Shape) -> str:
    """A parameter stored in float16 and read as float32."""
    return b.step("as_float", b.tensor("parameter", shape, dtype="float16"))


@leaf(FAMILY, "integer-stored")
def draw_integer_stored(b: Builder, shape: Shape) -> str:
    """An int64 buffer, read as float32 and scaled by a parameter."""
    stored = b.tensor("buffer", shape, dtype="int64", high=16)
    return b.step("mul", b.step("as_float", stored), b.tensor("parameter", ()))


@leaf(FAMILY, "bool-mask")
def draw_bool_mask(b: Builder, shape: Shape) -> str:
    """A parameter where a bool buffer is true, and half of it elsewhere."""
    return b.step("where", b.tensor("buffer", shape, dtype="bool"), b.tensor("parameter", shape))


@leaf(FAMILY, "magnitudes")
def draw_magnitudes(b: Builder, shape: Shape) -> str:
    """A parameter with zeros, large and tiny values."""
    return b.tensor("parameter", shape, "mixed")


@leaf(FAMILY, "scalar")
def draw_scalar(b: Builder, shape: Shape) -> str:
    """A parameter times another that has no dimensions."""
    role = b.pick(["parameter", "constant", "buffer"])
    return b.step("mul", b.tensor("parameter", shape), b.tensor(role, ()))


SIZED = frozenset(flow.name for flow in QUANTIZATIONS.values() if flow.reach == "layers")
"""These flows set the sizes themselves: their groups must divide them."""


@member("whole", FAMILY, "size-one", excludes=SIZED | {"prime-sizes"})
def draw_size_one(b: Builder) -> None:
    """Dimensions of size 1: one channel, one row."""
    b.widths = (1, 4)
    b.shapes = ((1, 4), (1, 1, 6), (1, 1, 5, 5))


@member("whole", FAMILY, "prime-sizes", excludes=SIZED)
def draw_prime_sizes(b: Builder) -> None:
    """Dimensions of prime size, which no vector width divides."""
    b.widths = (7, 3, 13)
    b.shapes = ((3, 7), (2, 5, 11), (1, 3, 5, 7))

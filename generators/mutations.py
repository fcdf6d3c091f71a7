"""Family ``mutations``: in-place updates of buffers, of views of buffers, and of temporaries."""

from __future__ import annotations

from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, block, weight
from generators.program import Attributes
from generators.vocabulary import NUMBER, Effect, Op, Type, add_op, broadcast, expect

FAMILY = "mutations"
CACHE = 8


def _update(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    wide = broadcast(types, attrs)[0]
    expect(wide.shape == types[0].shape, f"an update that broadcasts to {types[0]}", types[1])
    return [types[0]]


def _index(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    target, index, values = types
    expect(index.dtype == "int64" and len(index.shape) == 1, "an int64 index of one dimension", index)
    expected = (index.shape[0], *target.shape[1:])
    expect(values.shape == expected, f"values of shape {list(expected)}", values)
    expect(values.dtype == target.dtype, f"values of dtype {target.dtype}", values)
    return [target]


def _fill(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    return [types[0]]


for op in (
    Op("add_", FAMILY, "{0}.add_({1})", _update, (2, 2), effect=Effect.WRITE),
    Op("mul_", FAMILY, "{0}.mul_({1})", _update, (2, 2), effect=Effect.WRITE),
    Op("copy_", FAMILY, "{0}.copy_({1})", _update, (2, 2), effect=Effect.OVERWRITE),
    Op("fill_", FAMILY, "{0}.fill_({value})", _fill, (1, 1), {"value": NUMBER}, Effect.OVERWRITE),
    Op("index_put_", FAMILY, "{0}.index_put_(({1},), {2})", _index, (3, 3), effect=Effect.WRITE),
    Op("index_copy_", FAMILY, "{0}.index_copy_(0, {1}, {2})", _index, (3, 3), effect=Effect.WRITE),
):
    add_op(op)


@block(FAMILY, "accumulate")
def draw_accumulate(b: Builder, x: str) -> str:
    """A buffer that sums the activation over calls."""
    state = b.tensor("buffer", b.shape(x))
    b.write("add_", state, x)
    return b.step("add", x, state)


@block(FAMILY, "delay")
def draw_delay(b: Builder, x: str) -> str:
    """A buffer that is read and then overwritten with the activation: the last call's value."""
    state = b.tensor("buffer", b.shape(x))
    out = b.step("add", x, state)
    b.write("copy_", state, x)
    return out


@block(FAMILY, "view-write")
def draw_view_write(b: Builder, x: str) -> str:
    """A write through a view of a part of a buffer, then a read of another part that overlaps."""
    rows, rest = b.shape(x)[0], b.shape(x)[1:]
    state = b.tensor("buffer", (rows + 2, *rest))
    b.write(b.pick(["copy_", "add_"]), b.step("narrow", state, dim=0, start=1, length=rows), x)
    return b.step("add", x, b.step("narrow", state, dim=0, start=0, length=rows))


@block(FAMILY, "kv-cache")
def draw_kv_cache(b: Builder, x: str) -> str:
    """A cache that is written at positions given as an input, and read whole."""
    rows, rest = b.shape(x)[0], b.shape(x)[1:]
    state = b.tensor("buffer", (CACHE, *rest), "zeros")
    position = b.input((1,), high=CACHE)
    b.write(
        b.pick(["index_put_", "index_copy_"]),
        state,
        position,
        b.step("narrow", x, dim=0, start=0, length=1),
    )
    return b.step("add", x, b.step("narrow", state, dim=0, start=0, length=min(rows, CACHE)))


@block(FAMILY, "temporary-activation")
def draw_temporary_activation(b: Builder, x: str) -> str:
    """An in-place update of a temporary that is computed from the activation."""
    temporary = b.step("mul", x, x)
    b.write(b.pick(["add_", "mul_"]), temporary, b.tensor("constant", ()))
    return temporary


@weight(FAMILY, "temporary-weight")
def draw_temporary_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that is computed from a parameter and then updated in place before its use."""
    temporary = b.step("mul", b.weight(shape, depth), b.tensor("constant", ()))
    b.write(b.pick(["add_", "mul_"]), temporary, b.tensor("parameter", shape))
    return temporary


@weight(FAMILY, "state-weight")
def draw_state_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that holds a buffer which the method writes: it changes from call to call."""
    state = b.tensor("buffer", shape)
    mixed = b.step("add", b.weight(shape, depth), state)
    b.write("mul_", state, b.tensor("constant", ()))
    return mixed

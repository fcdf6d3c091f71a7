"""Family ``mutations``: in-place updates of buffers, of views of buffers, of inputs and of temporaries."""

from __future__ import annotations

from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, block, rank, weight
from generators.program import Attributes
from generators.vocabulary import NUMBER, SIZE, Attr, Effect, Op, Type, add_op, broadcast, expect, number

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


def _scatter(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    target, index, values = types
    expect(index.dtype == "int64" and index.shape == values.shape, "an int64 index like the values", index)
    expect(values.shape[1:] == target.shape[1:] and bool(values.shape), f"rows of {target}", values)
    return [target]


def _masked(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    target, mask = types
    expect(mask.dtype == "bool" and mask.shape == target.shape, "a bool mask of the target's shape", mask)
    return [target]


def _fill(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "float32", "a float32 target", types[0])
    return [types[0]]


def _count(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "int64", "an int64 counter", types[0])
    return [types[0]]


def _out(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    product = broadcast(types[1:], attrs)[0]
    expect(product == types[0], f"a target of {product}", types[0])
    return [product]


def _cache(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``llama::update_cache(value, cache, start)``: [batch, tokens, heads, width] each."""
    cache, values = types[:2]
    expect(len(cache.shape) == 4 and len(values.shape) == 4, "four dimensions", f"{cache}, {values}")
    alike = (cache.shape[0], *cache.shape[2:]) == (values.shape[0], *values.shape[2:])
    expect(alike, f"values that agree with {cache} outside dim 1", values)
    start = number(attrs, "start")
    expect(start + values.shape[1] <= cache.shape[1], f"at most {cache.shape[1]} tokens", start)
    if len(types) == 3:
        expected = Type((values.shape[0], values.shape[1]), "int64")
        expect(types[2] == expected, f"indices of {expected}", types[2])
    return [cache]


LLM = "from executorch.extension.llm.custom_ops import custom_ops  # registers the llama ops"
WRITE, OVERWRITE = Effect.WRITE, Effect.OVERWRITE
START = {"start": Attr("int", 0, 4096)}
for op in (
    Op("add_", FAMILY, "{0}.add_({1})", _update, (2, 2), effect=WRITE),
    Op("mul_", FAMILY, "{0}.mul_({1})", _update, (2, 2), effect=WRITE),
    Op("copy_", FAMILY, "{0}.copy_({1})", _update, (2, 2), effect=OVERWRITE),
    Op("fill_", FAMILY, "{0}.fill_({value})", _fill, (1, 1), {"value": NUMBER}, OVERWRITE),
    Op("zero_", FAMILY, "{0}.zero_()", _fill, effect=OVERWRITE),
    Op("index_put_", FAMILY, "{0}.index_put_(({1},), {2})", _index, (3, 3), effect=WRITE),
    Op("index_copy_", FAMILY, "{0}.index_copy_(0, {1}, {2})", _index, (3, 3), effect=WRITE),
    Op("scatter_", FAMILY, "{0}.scatter_(0, {1}, {2})", _scatter, (3, 3), effect=WRITE),
    Op("masked_fill_", FAMILY, "{0}.masked_fill_({1}, {value})", _masked, (2, 2), {"value": NUMBER}, WRITE),
    Op("increment_", FAMILY, "{0}.add_(1)", _count, effect=WRITE),
    Op("remainder", FAMILY, "{0} % {n}", _count, attrs={"n": SIZE}),
    Op("mul_out", FAMILY, "torch.mul({1}, {2}, out={0})", _out, (3, 3), effect=OVERWRITE),
    Op("update_cache_", FAMILY, "torch.ops.llama.update_cache({1}, {0}, {start})", _cache, (2, 2), START,
       WRITE, imports=LLM, float64=False),
    Op("update_cache_with_indices_", FAMILY,
       "torch.ops.llama.update_cache_with_indices({1}, {0}, {start}, {2})", _cache, (3, 3), START,
       WRITE, imports=LLM, float64=False),
):  # fmt: skip
    add_op(op)


def _rows(b: Builder, value: str, size: int) -> str:
    """The first ``size`` rows."""
    return b.step("narrow", value, dim=0, start=0, length=size)


def _read_first(b: Builder, x: str) -> tuple[str, str]:
    """A buffer like the activation, and their sum, before anything is written."""
    state = b.tensor("buffer", b.shape(x))
    return state, b.step("add", x, state)


@block(FAMILY, "accumulate", static=True)
def draw_accumulate(b: Builder, x: str) -> str:
    """A buffer that sums the activation over calls."""
    state = b.tensor("buffer", b.shape(x))
    b.write("add_", state, x)
    return b.step("add", x, state)


@block(FAMILY, "decay", static=True)
def draw_decay(b: Builder, x: str) -> str:
    """A buffer that every call scales."""
    state, out = _read_first(b, x)
    b.write("mul_", state, b.tensor("constant", ()))
    return out


@block(FAMILY, "delay", static=True)
def draw_delay(b: Builder, x: str) -> str:
    """A buffer that is read and then overwritten with the activation: the last call's value."""
    state, out = _read_first(b, x)
    b.write("copy_", state, x)
    return out


@block(FAMILY, "reset", static=True)
def draw_reset(b: Builder, x: str) -> str:
    """A buffer that is read and then filled with one number, or zero."""
    state, out = _read_first(b, x)
    if b.coin():
        b.write("fill_", state, value=0.5)
    else:
        b.write("zero_", state)
    return out


@block(FAMILY, "before-and-after", static=True)
def draw_before_and_after(b: Builder, x: str) -> str:
    """A buffer that is read before its write and again after it."""
    state = b.tensor("buffer", b.shape(x))
    before = b.step("mul", x, state)
    b.write("add_", state, x)
    return b.step("add", before, state)


@block(FAMILY, "view-write", static=True)
def draw_view_write(b: Builder, x: str) -> str:
    """A write through a view of a part of a buffer, then a read of another part that overlaps."""
    rows, rest = b.shape(x)[0], b.shape(x)[1:]
    state = b.tensor("buffer", (rows + 2, *rest))
    b.write(b.pick(["copy_", "add_"]), b.step("narrow", state, dim=0, start=1, length=rows), x)
    return b.step("add", x, b.step("narrow", state, dim=0, start=0, length=rows))


@block(FAMILY, "two-views", static=True)
def draw_two_views(b: Builder, x: str) -> str:
    """A write through a view of a view of a buffer, which is then read whole."""
    state = b.tensor("buffer", (3, *b.shape(x)))
    inner = b.step("select", b.step("narrow", state, dim=0, start=1, length=2), dim=0, index=1)
    b.write("add_", inner, x)
    b.extra_outputs.append(state)
    return b.step("add", x, b.step("select", state, dim=0, index=2))


@block(FAMILY, "mask-assign", static=True)
def draw_mask_assign(b: Builder, x: str) -> str:
    """A buffer that takes the activation, and one number where a bool buffer is true."""
    state = b.tensor("buffer", b.shape(x))
    b.write("add_", state, x)
    b.write("masked_fill_", state, b.tensor("buffer", b.shape(x), dtype="bool"), value=-2.0)
    return b.step("add", x, state)


@block(FAMILY, "kv-cache", static=True)
def draw_kv_cache(b: Builder, x: str) -> str:
    """A cache that is written at positions given as an input, and read whole."""
    rest = b.shape(x)[1:]
    state = b.tensor("buffer", (CACHE, *rest), "zeros")
    position = b.input((1,), high=CACHE)
    b.write(b.pick(["index_put_", "index_copy_"]), state, position, _rows(b, x, 1))
    b.extra_outputs.append(state)
    return b.step("add", x, _rows(b, state, 1))


@block(FAMILY, "scatter", static=True)
def draw_scatter(b: Builder, x: str) -> str:
    """A buffer into which the first row of the activation is scattered."""
    row = (1, *b.shape(x)[1:])
    state = b.tensor("buffer", (CACHE, *row[1:]))
    index = b.tensor("buffer", row, dtype="int64", high=CACHE)
    b.write("scatter_", state, index, _rows(b, x, 1))
    b.extra_outputs.append(state)
    return x


@block(FAMILY, "counter")
def draw_counter(b: Builder, x: str) -> str:
    """An int64 counter of the calls, added to the activation."""
    count = b.tensor("buffer", (1,), dtype="int64", high=4)
    b.write("increment_", count)
    return b.step("add", x, b.step("as_float", count))


@block(FAMILY, "ring-buffer", static=True)
def draw_ring_buffer(b: Builder, x: str) -> str:
    """A buffer that is written at a counter, round and round."""
    count = b.tensor("buffer", (1,), dtype="int64", high=4)
    state = b.tensor("buffer", (3, *b.shape(x)[1:]), "zeros")
    place = b.step("remainder", count, n=3)
    b.write("index_copy_", state, place, _rows(b, x, 1))
    b.write("increment_", count)
    b.extra_outputs.append(state)
    return x


@block(FAMILY, "update-cache", rank(2), static=True, excludes=frozenset({"strict"}))
def draw_update_cache(b: Builder, x: str) -> str:
    """``llama::update_cache``: a custom op that writes a cache at a fixed position."""
    state, values = _llama(b, x)
    b.write("update_cache_", state, values, start=2)
    b.extra_outputs.append(state)
    return x


@block(FAMILY, "update-cache-with-indices", rank(2), static=True, excludes=frozenset({"strict"}))
def draw_update_cache_with_indices(b: Builder, x: str) -> str:
    """``llama::update_cache_with_indices``: a custom op that writes a cache at given positions."""
    state, values = _llama(b, x)
    index = b.input((1, b.shape(x)[0]), high=CACHE)
    b.write("update_cache_with_indices_", state, values, index, start=0)
    b.extra_outputs.append(state)
    return x


def _llama(b: Builder, x: str) -> tuple[str, str]:
    """A cache, and the activation as [1, tokens, 1, width]."""
    rows, width = b.shape(x)
    state = b.tensor("buffer", (1, CACHE, 1, width), "zeros")
    return state, b.step("reshape", b.step("relu", x), shape=(1, rows, 1, width))


@block(FAMILY, "weight-then-written", rank(2), static=True)
def draw_weight_then_written(b: Builder, x: str) -> str:
    """A buffer that is the weight of a linear and is written afterwards."""
    outer, inner = b.channels(), b.shape(x)[1]
    state = b.tensor("buffer", (outer, inner))
    out = b.step("linear", x, b.step("mul", state, b.tensor("parameter", ())))
    b.write("mul_", state, b.tensor("constant", ()))
    return out


@block(FAMILY, "input-mutation", static=True)
def draw_input_mutation(b: Builder, x: str) -> str:
    """An input that is written in place, and returned by way of what reads it afterwards."""
    given = b.input(b.shape(x))
    b.write("add_", given, x)
    return b.step("mul", given, x)


@block(FAMILY, "temporary-activation")
def draw_temporary_activation(b: Builder, x: str) -> str:
    """An in-place update of a temporary that is computed from the activation."""
    temporary = b.step("mul", x, x)
    b.write(b.pick(["add_", "mul_"]), temporary, b.tensor("constant", ()))
    return temporary


@block(FAMILY, "out-activation", static=True)
def draw_out_activation(b: Builder, x: str) -> str:
    """An ``out=`` variant that writes a temporary computed from the activation."""
    temporary = b.step("add", x, x)
    b.write("mul_out", temporary, x, b.tensor("parameter", b.shape(x)[-1:]))
    return temporary


@weight(FAMILY, "temporary-weight")
def draw_temporary_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that is computed from a parameter and then updated in place before its use."""
    temporary = b.step("mul", b.weight(shape, depth), b.tensor("constant", ()))
    b.write(b.pick(["add_", "mul_"]), temporary, b.tensor("parameter", shape))
    return temporary


@weight(FAMILY, "temporary-view", lambda shape: len(shape) > 0 and shape[0] > 1)
def draw_temporary_view(b: Builder, shape: Shape, depth: int) -> str:
    """A computed weight of which one row is then overwritten through a view."""
    temporary = b.step("mul", b.weight(shape, depth), b.tensor("constant", ()))
    b.write("copy_", b.step("select", temporary, dim=0, index=1), b.tensor("parameter", shape[1:]))
    return temporary


@weight(FAMILY, "out-weight")
def draw_out_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A computed weight that an ``out=`` variant overwrites."""
    temporary = b.step("mul", b.tensor("parameter", shape), b.tensor("parameter", ()))
    b.write("mul_out", temporary, b.weight(shape, depth), b.tensor("parameter", shape))
    return temporary


@weight(FAMILY, "state-weight")
def draw_state_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that holds a buffer which the method writes: it changes from call to call."""
    state = b.tensor("buffer", shape)
    mixed = b.step("add", b.weight(shape, depth), state)
    b.write("mul_", state, b.tensor("constant", ()))
    return mixed

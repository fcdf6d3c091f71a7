"""Family ``expressions``: weights that are computed from parameters by ops written out in ``forward``."""

from __future__ import annotations

import math
from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, rank, ranked, weight
from generators.program import Attributes
from generators.vocabulary import (
    DIM,
    INDEX,
    SHAPE,
    SIZE,
    Attr,
    Effect,
    Op,
    Type,
    add_op,
    broadcast_shapes,
    dim_of,
    expect,
    floats,
    number,
    same,
    same_float,
    with_dim,
)

FAMILY = "expressions"


def _transpose(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(len(types[0].shape) == 2, "two dimensions", types[0])
    return [Type(types[0].shape[::-1], types[0].dtype)]


def _permute(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dims: tuple[int, ...] = tuple(attrs["dims"])  # type: ignore[arg-type]
    shape = types[0].shape
    expect(sorted(dims) == list(range(len(shape))), f"an order of {len(shape)} dimensions", list(dims))
    return [Type(tuple(shape[dim] for dim in dims), types[0].dtype)]


def _narrow(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim = dim_of(types[0].shape, attrs)
    start, length = number(attrs, "start"), number(attrs, "length")
    expect(start + length <= types[0].shape[dim], f"at most {types[0].shape[dim]}", start + length)
    return [Type(with_dim(types[0].shape, dim, length), types[0].dtype)]


def _select(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim, index, shape = dim_of(types[0].shape, attrs), number(attrs, "index"), types[0].shape
    expect(index < shape[dim], f"an index below {shape[dim]}", index)
    return [Type(shape[:dim] + shape[dim + 1 :], types[0].dtype)]


def _chunk(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim, chunks = dim_of(types[0].shape, attrs), number(attrs, "chunks")
    size = types[0].shape[dim]
    expect(size % chunks == 0, f"a dimension divisible by chunks={chunks}", size)
    return [Type(with_dim(types[0].shape, dim, size // chunks), types[0].dtype)] * chunks


def _split(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    sizes: tuple[int, ...] = tuple(attrs["sizes"])  # type: ignore[arg-type]
    dim = dim_of(types[0].shape, attrs)
    expect(bool(sizes) and sum(sizes) == types[0].shape[dim], f"sizes that add up to {types[0].shape[dim]}",
           list(sizes))  # fmt: skip
    return [Type(with_dim(types[0].shape, dim, size), types[0].dtype) for size in sizes]


def _unbind(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(bool(types[0].shape), "a dimension", types[0])
    return [Type(types[0].shape[1:], types[0].dtype)] * types[0].shape[0]


def _cat(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim = dim_of(types[0].shape, attrs)
    for item in types[1:]:
        aligned = with_dim(item.shape, dim, types[0].shape[dim]) if item.shape else ()
        expect(aligned == types[0].shape, f"parts that agree with {types[0]} outside dim {dim}", item)
    total = sum(item.shape[dim] for item in types)
    return [Type(with_dim(types[0].shape, dim, total), types[0].dtype)]


def _stack(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    for item in types[1:]:
        expect(item == types[0], f"parts of {types[0]}", item)
    return [Type((len(types), *types[0].shape), types[0].dtype)]


def _reshape(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    shape: tuple[int, ...] = tuple(attrs["shape"])  # type: ignore[arg-type]
    expect(math.prod(shape) == types[0].elements, f"{types[0].elements} elements", list(shape))
    return [Type(shape, types[0].dtype)]


def _expand(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    shape: tuple[int, ...] = tuple(attrs["shape"])  # type: ignore[arg-type]
    wide = broadcast_shapes([types[0].shape, shape])
    expect(wide == shape, f"a shape that {types[0]} expands to", list(shape))
    return [Type(shape, types[0].dtype)]


def _repeat(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    times, shape = number(attrs, "times"), types[0].shape
    expect(bool(shape), "a dimension", types[0])
    return [Type((times * shape[0], *shape[1:]), types[0].dtype)]


def _index(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    data, index = types
    expect(index.dtype == "int64" and len(index.shape) == 1, "an int64 index of one dimension", index)
    expect(bool(data.shape), "a dimension", data)
    return [Type((index.shape[0], *data.shape[1:]), data.dtype)]


def _gather(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    data, index = types
    expect(index.dtype == "int64" and len(index.shape) == len(data.shape), "an int64 index alike", index)
    fits = all(i <= d for i, d in zip(index.shape[1:], data.shape[1:], strict=True))
    expect(bool(data.shape) and fits, f"an index no wider than {data}", index)
    return [Type(index.shape, data.dtype)]


def _cast(source: str, target: str) -> Op:
    def infer(types: Sequence[Type], attrs: Attributes) -> list[Type]:
        expect(types[0].dtype == source, f"a {source} argument", types[0])
        return [Type(types[0].shape, target)]

    names = {"float16": "half", "float32": "float", "float64": "double", "bfloat16": "bfloat"}
    name = names[target] if source == "float32" else f"float_from_{names[source]}"
    return Op("float" if name == "float_from_half" else name, FAMILY, f"{{0}}.to(torch.{target})", infer)


def _along(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    dim_of(types[0].shape, attrs)
    return [types[0]]


def _along_float(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    return _along(types, attrs)


def _matrix(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(len(types[0].shape) == 2, "two dimensions", types[0])
    return [types[0]]


def _channels_last(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(len(types[0].shape) == 4, "four dimensions", types[0])
    return [types[0]]


def _by_scalar(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    expect(types[1].shape == (), "a scalar", types[1])
    return [types[0]]


def _product(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    left, right = types
    expect(len(left.shape) == len(right.shape) == 2, "two dimensions", f"{left}, {right}")
    expect(left.shape[1] == right.shape[1], f"{left.shape[1]} columns", right.shape[1])
    return [Type((left.shape[0], right.shape[0]))]


CHAIN = """def chain(tensor, times):
    for _ in range(times):
        tensor = tensor * 0.99 + 0.001
    return tensor"""
DOUBLED = """def doubled(tensor, times):  # 2**times paths lead to the result
    for _ in range(times):
        tensor = (tensor + tensor) * 0.5
    return tensor"""
STANDARDIZED = """def standardized(tensor, dim):
    var, mean = torch.var_mean(tensor, dim, correction=0, keepdim=True)
    return (tensor - mean) * torch.rsqrt(var + 0.1)"""
TIMES = {"times": Attr("int", 1, 500)}
VIEW, MAYBE = Effect.VIEW, Effect.MAYBE_VIEW
SPAN = {"dim": DIM, "start": INDEX, "length": SIZE}

for op in (
    Op("t", FAMILY, "{0}.t()", _transpose, effect=VIEW),
    Op("permute", FAMILY, "{0}.permute({dims})", _permute, attrs={"dims": SHAPE}, effect=VIEW),
    Op("narrow", FAMILY, "{0}.narrow({dim}, {start}, {length})", _narrow, attrs=SPAN, effect=VIEW),
    Op("select", FAMILY, "{0}.select({dim}, {index})", _select, (1, 1), {"dim": DIM, "index": INDEX}, VIEW),
    Op("chunk", FAMILY, "{0}.chunk({chunks}, {dim})", _chunk, (1, 1), {"chunks": SIZE, "dim": DIM}, VIEW),
    Op("split", FAMILY, "{0}.split({sizes}, {dim})", _split, (1, 1), {"sizes": SHAPE, "dim": DIM}, VIEW),
    Op("unbind", FAMILY, "{0}.unbind(0)", _unbind, effect=VIEW),
    Op("cat", FAMILY, "torch.cat(({args},), {dim})", _cat, (1, 8), {"dim": DIM}),
    Op("stack", FAMILY, "torch.stack(({args},))", _stack, (1, 8)),
    Op("reshape", FAMILY, "{0}.reshape({shape})", _reshape, attrs={"shape": SHAPE}, effect=MAYBE),
    Op("expand", FAMILY, "{0}.expand({shape})", _expand, attrs={"shape": SHAPE}, effect=VIEW),
    Op("repeat", FAMILY, "torch.cat([{0}] * {times})", _repeat, attrs=TIMES),
    Op("index_select", FAMILY, "{0}.index_select(0, {1})", _index, (2, 2)),
    Op("gather", FAMILY, "{0}.gather(0, {1})", _gather, (2, 2)),
    Op("contiguous", FAMILY, "{0}.contiguous()", same, effect=MAYBE),
    Op(
        "channels_last",
        FAMILY,
        "{0}.contiguous(memory_format=torch.channels_last)",
        _channels_last,
        effect=MAYBE,
    ),
    *(_cast("float32", other) for other in ("float16", "float64", "bfloat16")),
    *(_cast(other, "float32") for other in ("float16", "float64", "bfloat16")),
    Op("flip", FAMILY, "{0}.flip({dim})", _along, attrs={"dim": DIM}),
    Op("roll", FAMILY, "{0}.roll(1, {dim})", _along, attrs={"dim": DIM}),
    Op("tril", FAMILY, "torch.tril({0})", _matrix),
    Op("triu", FAMILY, "torch.triu({0})", _matrix),
    Op("softplus", FAMILY, "F.softplus({0})", same_float),
    Op("normalized", FAMILY, "{0} / ({0}.norm(dim={dim}, keepdim=True) + 0.1)", _along_float,
       attrs={"dim": DIM}),
    Op("standardized", FAMILY, "standardized({0}, {dim})", _along_float, attrs={"dim": DIM},
       source=STANDARDIZED),
    Op("centered", FAMILY, "{0} - {0}.mean({dim}, keepdim=True)", _along_float, attrs={"dim": DIM}),
    Op("by_item", FAMILY, "{0} * {1}.item()", _by_scalar, (2, 2)),
    Op("outer_einsum", FAMILY, "torch.einsum('ik,jk->ij', {0}, {1})", _product, (2, 2)),
    Op("clone", FAMILY, "{0}.clone()", same),
    Op("detach", FAMILY, "{0}.detach()", same, effect=VIEW),
    Op("alias", FAMILY, "torch.ops.aten.alias({0})", same, effect=VIEW),
    Op("chain", FAMILY, "chain({0}, {times})", same_float, attrs=TIMES, source=CHAIN),
    Op("doubled", FAMILY, "doubled({0}, {times})", same_float, attrs=TIMES, source=DOUBLED),
):  # fmt: skip
    add_op(op)


@weight(FAMILY, "transpose", rank(2))
def draw_transpose(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored transposed and read through ``t()``."""
    return b.step("t", b.weight(shape[::-1], depth))


@weight(FAMILY, "permute", lambda shape: len(shape) > 1)
def draw_permute(b: Builder, shape: Shape, depth: int) -> str:
    """A weight stored with its dimensions in reverse order."""
    return b.step("permute", b.weight(shape[::-1], depth), dims=tuple(reversed(range(len(shape)))))


@weight(FAMILY, "slice", ranked)
def draw_slice(b: Builder, shape: Shape, depth: int) -> str:
    """A part of a longer weight, not from its start."""
    extra = b.integer(1, 4)
    longer = b.weight(with_dim(shape, 0, shape[0] + extra), depth)
    return b.step("narrow", longer, dim=0, start=extra, length=shape[0])


@weight(FAMILY, "select")
def draw_select(b: Builder, shape: Shape, depth: int) -> str:
    """One of several weights that are stored as one."""
    return b.step("select", b.weight((3, *shape), depth), dim=0, index=b.integer(1, 2))


@weight(FAMILY, "chunk", ranked)
def draw_chunk(b: Builder, shape: Shape, depth: int) -> str:
    """One chunk of a packed weight; the other chunks are not used."""
    chunks = b.integer(2, 3)
    packed = b.weight(with_dim(shape, 0, chunks * shape[0]), depth)
    return b.pick(b.steps("chunk", packed, chunks=chunks, dim=0)[::-1])


@weight(FAMILY, "split", ranked)
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


@weight(FAMILY, "half", ranked)
def draw_half(b: Builder, shape: Shape, depth: int) -> str:
    """A round trip through float16."""
    return b.step("float", b.step("half", b.weight(shape, depth)))


@weight(FAMILY, "double")
def draw_double(b: Builder, shape: Shape, depth: int) -> str:
    """A round trip through float64."""
    return b.step("float_from_double", b.step("double", b.weight(shape, depth)))


@weight(FAMILY, "bfloat")
def draw_bfloat(b: Builder, shape: Shape, depth: int) -> str:
    """A round trip through bfloat16."""
    return b.step("float_from_bfloat", b.step("bfloat", b.weight(shape, depth)))


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


@weight(FAMILY, "channels-last", rank(4), often=2)
def draw_channels_last(b: Builder, shape: Shape, depth: int) -> str:
    """A weight brought into the channels_last memory format."""
    return b.step("channels_last", b.weight(shape, depth))


@weight(FAMILY, "normalized", ranked)
def draw_normalized(b: Builder, shape: Shape, depth: int) -> str:
    """A weight divided by its norm along a dimension."""
    return b.step("normalized", b.weight(shape, depth), dim=b.integer(0, len(shape) - 1))


@weight(FAMILY, "standardized", ranked)
def draw_standardized(b: Builder, shape: Shape, depth: int) -> str:
    """A weight of mean 0 and variance 1 along a dimension."""
    return b.step("standardized", b.weight(shape, depth), dim=b.integer(0, len(shape) - 1))


@weight(FAMILY, "centered", ranked)
def draw_centered(b: Builder, shape: Shape, depth: int) -> str:
    """A weight less its mean along a dimension."""
    return b.step("centered", b.weight(shape, depth), dim=b.integer(0, len(shape) - 1))


@weight(FAMILY, "positive")
def draw_positive(b: Builder, shape: Shape, depth: int) -> str:
    """The softplus of a weight."""
    return b.step("softplus", b.weight(shape, depth))


@weight(FAMILY, "clone")
def draw_clone(b: Builder, shape: Shape, depth: int) -> str:
    """A clone of a weight."""
    return b.step("clone", b.weight(shape, depth))


@weight(FAMILY, "detach")
def draw_detach(b: Builder, shape: Shape, depth: int) -> str:
    """A detached weight."""
    return b.step("detach", b.weight(shape, depth))


@weight(FAMILY, "alias")
def draw_alias(b: Builder, shape: Shape, depth: int) -> str:
    """An alias of a weight."""
    return b.step("alias", b.weight(shape, depth))


@weight(FAMILY, "deep-chain", often=1)
def draw_deep_chain(b: Builder, shape: Shape, depth: int) -> str:
    """A weight after hundreds of elementwise steps."""
    return b.step("chain", b.weight(shape, depth), times=b.pick([100, 200]))


@weight(FAMILY, "many-paths", often=2)
def draw_many_paths(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that shared sub-expressions reach by exponentially many paths."""
    return b.step("doubled", b.weight(shape, depth), times=30)


@weight(FAMILY, "buffer-mask")
def draw_buffer_mask(b: Builder, shape: Shape, depth: int) -> str:
    """A weight times a mask that is a buffer which nothing writes."""
    return b.step("mul", b.weight(shape, depth), b.tensor("buffer", shape))

"""The ops that weights are computed by: views, copies, casts, reductions, products."""

from __future__ import annotations

import math
from collections.abc import Sequence

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


def _cast(name: str, source: str, target: str) -> Op:
    def infer(types: Sequence[Type], attrs: Attributes) -> list[Type]:
        expect(types[0].dtype == source, f"a {source} argument", types[0])
        return [Type(types[0].shape, target)]

    return Op(name, FAMILY, f"{{0}}.to(torch.{target})", infer)


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
    _cast("half", "float32", "float16"),
    _cast("float", "float16", "float32"),
    _cast("double", "float32", "float64"),
    _cast("float_from_double", "float64", "float32"),
    _cast("bfloat", "float32", "bfloat16"),
    _cast("float_from_bfloat", "bfloat16", "float32"),
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

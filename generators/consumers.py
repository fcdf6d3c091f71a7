"""GEMM consumers: the ops and layers whose weight and bias decide whether XNNPACK takes them.

The positions of weight and bias are those of the aten schemas (``addmm(bias, input, weight)``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from generators.program import Attributes
from generators.vocabulary import (
    DIM,
    Attr,
    Op,
    Type,
    TypeRuleError,
    add_op,
    broadcast,
    broadcast_shapes,
    dim_of,
    expect,
    floats,
    number,
    same_float,
)

FAMILY = "consumers"

CONV_ATTRS = {
    "stride": Attr("int", 1, 4),
    "padding": Attr("int", 0, 8),
    "dilation": Attr("int", 1, 4),
    "groups": Attr("int", 1, 64),
}
TRANSPOSED_ATTRS = {name: CONV_ATTRS[name] for name in ("stride", "padding", "groups")}


def _bias(types: Sequence[Type], channels: int) -> None:
    if len(types) > 2:
        expect(types[2].shape == (channels,), f"a bias of shape [{channels}]", types[2])


def linear_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``F.linear``: input [..., in], weight [out, in], bias [out]."""
    floats(types)
    data, weight = types[0].shape, types[1].shape
    expect(len(weight) == 2, "a weight of two dimensions", types[1])
    expect(bool(data) and data[-1] == weight[1], f"an input of [..., {weight[1]}]", types[0])
    _bias(types, weight[0])
    return [Type((*data[:-1], weight[0]))]


def conv_type(rank: int, types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``F.conv1d`` and ``F.conv2d``: input [N, in, *L], weight [out, in / groups, *K], bias [out]."""
    floats(types)
    data, weight = types[0].shape, types[1].shape
    groups = number(attrs, "groups")
    expect(len(data) == rank + 2, f"an input of {rank + 2} dimensions", types[0])
    expect(len(weight) == rank + 2, f"a weight of {rank + 2} dimensions", types[1])
    expect(weight[1] * groups == data[1], f"{weight[1] * groups} input channels", data[1])
    expect(weight[0] % groups == 0, f"output channels divisible by groups={groups}", weight[0])
    _bias(types, weight[0])
    stride, padding, dilation = (number(attrs, n) for n in ("stride", "padding", "dilation"))
    lengths = [
        (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel in zip(data[2:], weight[2:], strict=True)
    ]
    expect(all(size > 0 for size in lengths), "a kernel no longer than the padded input", types[1])
    return [Type((data[0], weight[0], *lengths))]


def conv_transpose_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``F.conv_transpose1d``: input [N, in, L], weight [in, out / groups, K], bias [out]."""
    floats(types)
    data, weight = types[0].shape, types[1].shape
    groups, stride, padding = (number(attrs, n) for n in ("groups", "stride", "padding"))
    expect(len(data) == 3 and len(weight) == 3, "three dimensions", f"{types[0]}, {types[1]}")
    expect(weight[0] == data[1], f"{weight[0]} input channels", data[1])
    expect(weight[0] % groups == 0, f"input channels divisible by groups={groups}", weight[0])
    _bias(types, weight[1] * groups)
    length = (data[2] - 1) * stride - 2 * padding + weight[2]
    expect(length > 0, "padding smaller than the output", padding)
    return [Type((data[0], weight[1] * groups, length))]


def matmul_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``torch.matmul``: [..., n, k] by [k, m] or batched."""
    floats(types)
    left, right = types[0].shape, types[1].shape
    expect(len(left) >= 2 and len(right) >= 2, "two dimensions or more", f"{types[0]}, {types[1]}")
    expect(left[-1] == right[-2], f"{left[-1]} rows of argument 1", right[-2])
    batch = broadcast_shapes([left[:-2], right[:-2]]) if left[:-2] or right[:-2] else ()
    return [Type((*batch, left[-2], right[-1]))]


def mm_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``torch.mm``: two dimensions each."""
    for item in types:
        expect(len(item.shape) == 2, "two dimensions", item)
    return matmul_type(types, attrs)


def addmm_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``torch.addmm(bias, input, weight)`` with a bias that broadcasts to the product."""
    product = mm_type(types[1:], attrs)[0]
    floats(types)
    wide = broadcast_shapes([types[0].shape, product.shape])
    expect(wide == product.shape, f"a bias that broadcasts to {list(product.shape)}", types[0])
    return [product]


def batched_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``torch.bmm``: [b, n, k] by [b, k, m]."""
    left, right = types[-2].shape, types[-1].shape
    expect(len(left) == len(right) == 3 and left[0] == right[0], f"batches of {left[:1]}", types[-1])
    product = matmul_type(types[-2:], attrs)
    if len(types) == 3:
        expect(types[0] == product[0], f"a bias of {product[0]}", types[0])
    return product


def _conv_same(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    plain = {"stride": 1, "padding": 0, "dilation": 1, "groups": number(attrs, "groups")}
    wide = conv_type(1, types, {**plain, "padding": types[1].shape[-1]})[0]
    return [Type((*wide.shape[:-1], types[0].shape[-1]))]


def _conv_transpose2d(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    data, weight = types[0].shape, types[1].shape
    expect(len(data) == 4 and len(weight) == 4, "four dimensions", f"{types[0]}, {types[1]}")
    line = [Type(data[:3]), Type(weight[:3]), *types[2:]]
    height = conv_transpose_type(line, attrs)[0].shape
    line = [Type((*data[:2], data[3])), Type((*weight[:2], weight[3])), *types[2:]]
    return [Type((*height, conv_transpose_type(line, attrs)[0].shape[2]))]


def _bilinear(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    left, right, weight = types[0].shape, types[1].shape, types[2].shape
    expect(
        len(weight) == 3 and left[:-1] == right[:-1], "inputs alike and a weight of [out, in, in]", types[2]
    )
    expect((left[-1], right[-1]) == weight[1:], f"features of {list(weight[1:])}", f"{types[0]}, {types[1]}")
    return [Type((*left[:-1], weight[0]))]


def _per_channel(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    expect(len(types[0].shape) > 1, "two dimensions or more", types[0])
    for item in types[1:]:
        expect(item.shape == types[0].shape[1:2], f"one value for each of {types[0].shape[1]} channels", item)
    return [types[0]]


def _group_norm(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    groups = number(attrs, "groups")
    given = _per_channel(types, attrs)
    expect(types[0].shape[1] % groups == 0, f"channels divisible by groups={groups}", types[0])
    # torch.nn.functional refuses a group of one number.
    expect(math.prod(types[0].shape) // groups > 1, "more than one number for each group", types[0])
    return given


def _layer_norm(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    expect(bool(types[0].shape), "a dimension", types[0])
    for item in types[1:]:
        expect(
            item.shape == types[0].shape[-1:], f"one value for each of {types[0].shape[-1]} features", item
        )
    return [types[0]]


def _embedding(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    index, table = types
    expect(
        index.dtype == "int64" and len(table.shape) == 2, "an int64 index and a table", f"{index}, {table}"
    )
    return [Type((*index.shape, table.shape[1]))]


def _attention(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    expect(len(types[0].shape) > 1 and len(set(types)) == 1, "three values alike", ", ".join(map(str, types)))
    return [types[0]]


def _half_linear(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[1].dtype == "float16", "a weight of float16", types[1])
    return linear_type([types[0], Type(types[1].shape)], attrs)


def _einsum_linear(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(len(types[0].shape) == 3, "three dimensions", types[0])
    return linear_type(types, attrs)


def _mean(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    dim = dim_of(types[0].shape, attrs)
    return [Type(types[0].shape[:dim] + types[0].shape[dim + 1 :])]


def _scalar(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    floats(types)
    return [Type(())]


def _call(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    raise TypeRuleError("a call is typed by what it calls")


CONV_CODE = "({args}, stride={stride}, padding={padding}, dilation={dilation}, groups={groups})"

for op in (
    Op("linear", FAMILY, "F.linear({args})", linear_type, (2, 3), weight=1, bias=2),
    Op(
        "conv1d",
        FAMILY,
        "F.conv1d" + CONV_CODE,
        lambda types, attrs: conv_type(1, types, attrs),
        (2, 3),
        CONV_ATTRS,
        weight=1,
        bias=2,
    ),
    Op(
        "conv2d",
        FAMILY,
        "F.conv2d" + CONV_CODE,
        lambda types, attrs: conv_type(2, types, attrs),
        (2, 3),
        CONV_ATTRS,
        weight=1,
        bias=2,
    ),
    Op(
        "conv_transpose1d",
        FAMILY,
        "F.conv_transpose1d({args}, stride={stride}, padding={padding}, groups={groups})",
        conv_transpose_type,
        (2, 3),
        TRANSPOSED_ATTRS,
        weight=1,
        bias=2,
        channel=1,
    ),
    Op("addmm", FAMILY, "torch.addmm({args})", addmm_type, (3, 3), weight=2, bias=0, channel=-1),
    Op("mm", FAMILY, "torch.mm({args})", mm_type, (2, 2), weight=1, channel=-1),
    Op("matmul", FAMILY, "torch.matmul({args})", matmul_type, (2, 2), weight=1, channel=-1),
    Op(
        "conv1d_same",
        FAMILY,
        "F.conv1d({args}, padding='same', dilation={dilation}, groups={groups})",
        _conv_same,
        (2, 3),
        {name: CONV_ATTRS[name] for name in ("dilation", "groups")},
        weight=1,
        bias=2,
    ),
    Op(
        "conv_transpose2d",
        FAMILY,
        "F.conv_transpose2d({args}, stride={stride}, padding={padding}, groups={groups})",
        _conv_transpose2d,
        (2, 3),
        TRANSPOSED_ATTRS,
        weight=1,
        bias=2,
        channel=1,
    ),
    Op(
        "half_linear",
        FAMILY,
        "F.linear({0}.to(torch.float16), {1}).to(torch.float32)",
        _half_linear,
        (2, 2),
        weight=1,
    ),
    # XNNPACK does not ask for a stored weight here, or does not take the op at all.
    Op("bmm", FAMILY, "torch.bmm({args})", batched_type, (2, 2)),
    Op("baddbmm", FAMILY, "torch.baddbmm({args})", batched_type, (3, 3)),
    Op("einsum", FAMILY, "torch.einsum('bti,oi->bto', {args})", _einsum_linear, (2, 2)),
    Op("bilinear", FAMILY, "F.bilinear({args})", _bilinear, (3, 3), stops="lower"),
    Op("prelu", FAMILY, "F.prelu({args})", _per_channel, (2, 2)),
    Op("batch_norm", FAMILY, "F.batch_norm({args})", _per_channel, (5, 5)),
    Op("group_norm", FAMILY, "F.group_norm({0}, {groups}, {rest})", _group_norm, (3, 3),
       {"groups": Attr("int", 1, 64)}),
    Op("layer_norm", FAMILY, "F.layer_norm({0}, {1}.shape, {rest})", _layer_norm, (3, 3)),
    Op("embedding", FAMILY, "F.embedding({args})", _embedding, (2, 2)),
    Op("attention", FAMILY, "F.scaled_dot_product_attention({args})", _attention, (3, 3)),
    Op("cond", FAMILY, "torch.cond({0}, self.{then}, self.{other}, ({rest},))", _call, (2, 4),
       {"then": Attr("branch"), "other": Attr("branch")}),
    Op("call", FAMILY, "self.{layer}({0})", _call, (1, 1), {"layer": Attr("layer")}),
    Op("relu", FAMILY, "torch.relu({0})", same_float),
    Op("sigmoid", FAMILY, "torch.sigmoid({0})", same_float),
    Op("tanh", FAMILY, "torch.tanh({0})", same_float),
    Op("add", FAMILY, "{0} + {1}", broadcast, (2, 2)),
    Op("mul", FAMILY, "{0} * {1}", broadcast, (2, 2)),
    Op("mean", FAMILY, "{0}.mean({dim})", _mean, attrs={"dim": DIM}),
    Op("loss", FAMILY, "{0}.square().mean()", _scalar),
):  # fmt: skip
    add_op(op)

"""GEMM consumers: the ops and layers whose weight and bias decide whether XNNPACK takes them.

The positions of weight and bias are those of the aten schemas (``addmm(bias, input, weight)``).
"""

from __future__ import annotations

from collections.abc import Sequence

from generators.program import Attributes
from generators.vocabulary import (
    Attr,
    Effect,
    Op,
    Type,
    TypeRuleError,
    add_op,
    broadcast,
    broadcast_shapes,
    dim_of,
    expect,
    same,
)

FAMILY = "consumers"

CONV_ATTRS = {
    "stride": Attr("int", 1, 4),
    "padding": Attr("int", 0, 8),
    "dilation": Attr("int", 1, 4),
    "groups": Attr("int", 1, 64),
}
TRANSPOSED_ATTRS = {name: CONV_ATTRS[name] for name in ("stride", "padding", "groups")}


def _number(attrs: Attributes, name: str) -> int:
    return int(attrs[name])  # type: ignore[arg-type]


def _float32(types: Sequence[Type]) -> None:
    for item in types:
        expect(item.dtype == "float32", "float32 arguments", item)


def _bias(types: Sequence[Type], channels: int) -> None:
    if len(types) > 2:
        expect(types[2].shape == (channels,), f"a bias of shape [{channels}]", types[2])


def linear_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``F.linear``: input [..., in], weight [out, in], bias [out]."""
    _float32(types)
    data, weight = types[0].shape, types[1].shape
    expect(len(weight) == 2, "a weight of two dimensions", types[1])
    expect(bool(data) and data[-1] == weight[1], f"an input of [..., {weight[1]}]", types[0])
    _bias(types, weight[0])
    return [Type((*data[:-1], weight[0]))]


def conv_type(rank: int, types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``F.conv1d`` and ``F.conv2d``: input [N, in, *L], weight [out, in / groups, *K], bias [out]."""
    _float32(types)
    data, weight = types[0].shape, types[1].shape
    groups = _number(attrs, "groups")
    expect(len(data) == rank + 2, f"an input of {rank + 2} dimensions", types[0])
    expect(len(weight) == rank + 2, f"a weight of {rank + 2} dimensions", types[1])
    expect(weight[1] * groups == data[1], f"{weight[1] * groups} input channels", data[1])
    expect(weight[0] % groups == 0, f"output channels divisible by groups={groups}", weight[0])
    _bias(types, weight[0])
    stride, padding, dilation = (_number(attrs, n) for n in ("stride", "padding", "dilation"))
    lengths = [
        (size + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel in zip(data[2:], weight[2:], strict=True)
    ]
    expect(all(size > 0 for size in lengths), "a kernel no longer than the padded input", types[1])
    return [Type((data[0], weight[0], *lengths))]


def conv_transpose_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``F.conv_transpose1d``: input [N, in, L], weight [in, out / groups, K], bias [out]."""
    _float32(types)
    data, weight = types[0].shape, types[1].shape
    groups, stride, padding = (_number(attrs, n) for n in ("groups", "stride", "padding"))
    expect(len(data) == 3 and len(weight) == 3, "three dimensions", f"{types[0]}, {types[1]}")
    expect(weight[0] == data[1], f"{weight[0]} input channels", data[1])
    expect(weight[0] % groups == 0, f"input channels divisible by groups={groups}", weight[0])
    _bias(types, weight[1] * groups)
    length = (data[2] - 1) * stride - 2 * padding + weight[2]
    expect(length > 0, "padding smaller than the output", padding)
    return [Type((data[0], weight[1] * groups, length))]


def matmul_type(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    """``torch.matmul``: [..., n, k] by [k, m] or batched."""
    _float32(types)
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
    _float32(types)
    wide = broadcast_shapes([types[0].shape, product.shape])
    expect(wide == product.shape, f"a bias that broadcasts to {list(product.shape)}", types[0])
    return [product]


def _mean(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    _float32(types)
    dim = dim_of(types[0].shape, attrs)
    return [Type(types[0].shape[:dim] + types[0].shape[dim + 1 :])]


def _call(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    raise TypeRuleError("a call of a layer is typed by its layer")


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
    Op("call", FAMILY, "self.{layer}({0})", _call, (1, 1), {"layer": Attr("layer")}),
    Op("relu", FAMILY, "torch.relu({0})", same),
    Op("sigmoid", FAMILY, "torch.sigmoid({0})", same),
    Op("tanh", FAMILY, "torch.tanh({0})", same),
    Op("add", FAMILY, "{0} + {1}", broadcast, (2, 2)),
    Op("mul", FAMILY, "{0} * {1}", broadcast, (2, 2)),
    Op("mean", FAMILY, "{0}.mean({dim})", _mean, attrs={"dim": Attr("int", -4, 3)}),
    Op("clone", FAMILY, "{0}.clone()", same),
    Op("detach", FAMILY, "{0}.detach()", same, effect=Effect.VIEW),
):
    add_op(op)

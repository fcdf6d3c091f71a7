"""Blocks around the GEMM consumers: a consumer with a drawn weight and bias, or a plain activation op.

They are members of the family ``consumers``. Blocks that hold a whole network cell are in ``cells``.
"""

from __future__ import annotations

import math

from generators.builder import DEPTH, Builder
from generators.consumers import FAMILY
from generators.members import Shape, block, rank


def matrix_like(shape: Shape) -> bool:
    """Admits two dimensions and more."""
    return len(shape) > 1


def bias_of(b: Builder, channels: int) -> list[str]:
    """No bias, or one of [channels]."""
    return [b.weight((channels,), DEPTH - 1)] if b.coin() else []


@block(FAMILY, "linear", matrix_like)
def draw_linear(b: Builder, x: str) -> str:
    """``F.linear`` over the last dimension."""
    shape = (b.channels(), b.shape(x)[-1])
    return b.step("linear", x, b.weight(shape, DEPTH), *bias_of(b, shape[0]))


@block(FAMILY, "linear-layer", matrix_like)
def draw_linear_layer(b: Builder, x: str) -> str:
    """``nn.Linear``, perhaps under parametrizations."""
    inner, outer, bias = b.shape(x)[-1], b.channels(), b.coin()
    drawn = b.parametrizations((outer, inner), (outer,) if bias else None)
    return b.call(b.layer("Linear", drawn, in_features=inner, out_features=outer, bias=bias), x)


@block(FAMILY, "half-linear", matrix_like)
def draw_half_linear(b: Builder, x: str) -> str:
    """``F.linear`` in float16, its weight stored transposed or as it is."""
    shape = (b.channels(), b.shape(x)[-1])
    if b.coin():
        return b.step("half_linear", x, b.step("t", b.tensor("parameter", shape[::-1], dtype="float16")))
    return b.step("half_linear", x, b.tensor("parameter", shape, dtype="float16"))


def _conv_attrs(b: Builder, channels: int) -> dict[str, int]:
    groups = b.pick([size for size in (1, 2, channels) if channels % size == 0])
    return {"stride": b.integer(1, 2), "padding": b.integer(0, 2), "groups": groups}


def _conv(b: Builder, x: str, op: str) -> str:
    channels, *sizes = b.shape(x)[1:]
    attrs = _conv_attrs(b, channels)
    kernel = b.integer(1, min(3, *sizes))
    outer = attrs["groups"] * b.integer(1, 2)
    drawn = b.weight((outer, channels // attrs["groups"], *[kernel] * len(sizes)), DEPTH)
    return b.step(op, x, drawn, *bias_of(b, outer), dilation=1, **attrs)


def _conv_layer(b: Builder, x: str, kind: str) -> str:
    inner, *sizes = b.shape(x)[1:]
    attrs, bias = _conv_attrs(b, inner), b.coin()
    kernel = b.integer(1, min(3, *sizes))
    outer = attrs["groups"] * b.integer(1, 2)
    weight = (outer, inner // attrs["groups"], *[kernel] * len(sizes))
    drawn = b.parametrizations(weight, (outer,) if bias else None)
    named = {"in_channels": inner, "out_channels": outer, "kernel_size": kernel, "bias": bias}
    return b.call(b.layer(kind, drawn, **named, dilation=1, **attrs), x)


@block(FAMILY, "conv1d", rank(3))
def draw_conv1d(b: Builder, x: str) -> str:
    """``F.conv1d``, also grouped, strided and padded."""
    return _conv(b, x, "conv1d")


@block(FAMILY, "conv1d-layer", rank(3))
def draw_conv1d_layer(b: Builder, x: str) -> str:
    """``nn.Conv1d``, perhaps under parametrizations."""
    return _conv_layer(b, x, "Conv1d")


@block(FAMILY, "conv2d", rank(4))
def draw_conv2d(b: Builder, x: str) -> str:
    """``F.conv2d``, also grouped, strided and padded."""
    return _conv(b, x, "conv2d")


@block(FAMILY, "conv2d-layer", rank(4))
def draw_conv2d_layer(b: Builder, x: str) -> str:
    """``nn.Conv2d``, perhaps under parametrizations."""
    return _conv_layer(b, x, "Conv2d")


@block(FAMILY, "depthwise-conv", rank(3, 4))
def draw_depthwise(b: Builder, x: str) -> str:
    """A convolution with one group for each channel."""
    channels, *sizes = b.shape(x)[1:]
    drawn = b.weight((channels, 1, *[1] * len(sizes)), DEPTH)
    attrs = {"stride": 1, "padding": 0, "dilation": 1, "groups": channels}
    return b.step(f"conv{len(sizes)}d", x, drawn, *bias_of(b, channels), **attrs)


@block(FAMILY, "dilated-conv", rank(3))
def draw_dilated(b: Builder, x: str) -> str:
    """A dilated ``F.conv1d``, padded to keep its length."""
    channels = b.shape(x)[1]
    drawn = b.weight((b.channels(), channels, 3), DEPTH)
    return b.step("conv1d", x, drawn, stride=1, padding=2, dilation=2, groups=1)


@block(FAMILY, "same-conv", rank(3))
def draw_same_conv(b: Builder, x: str) -> str:
    """``F.conv1d`` with ``padding='same'``."""
    channels = b.shape(x)[1]
    drawn = b.weight((b.channels(), channels, b.pick([3, 2])), DEPTH)
    return b.step("conv1d_same", x, drawn, dilation=b.integer(1, 2), groups=1)


@block(FAMILY, "conv-transpose1d", rank(3))
def draw_conv_transpose1d(b: Builder, x: str) -> str:
    """``F.conv_transpose1d``."""
    channels, outer = b.shape(x)[1], b.channels()
    drawn = b.weight((channels, outer, b.integer(1, 3)), DEPTH)
    attrs = {"stride": b.integer(1, 2), "padding": 0, "groups": 1}
    return b.step("conv_transpose1d", x, drawn, *bias_of(b, outer), **attrs)


@block(FAMILY, "conv-transpose2d", rank(4))
def draw_conv_transpose2d(b: Builder, x: str) -> str:
    """``F.conv_transpose2d``."""
    channels, outer, kernel = b.shape(x)[1], b.channels(), b.integer(1, 2)
    drawn = b.weight((channels, outer, kernel, kernel), DEPTH)
    attrs = {"stride": b.integer(1, 2), "padding": 0, "groups": 1}
    return b.step("conv_transpose2d", x, drawn, *bias_of(b, outer), **attrs)


@block(FAMILY, "conv-transpose1d-layer", rank(3))
def draw_conv_transpose1d_layer(b: Builder, x: str) -> str:
    """``nn.ConvTranspose1d``, perhaps under parametrizations."""
    channels, outer, kernel, bias = b.shape(x)[1], b.channels(), b.integer(1, 3), b.coin()
    drawn = b.parametrizations((channels, outer, kernel), (outer,) if bias else None)
    attrs = {"stride": b.integer(1, 2), "padding": 0, "groups": 1, "bias": bias}
    sizes = {"in_channels": channels, "out_channels": outer, "kernel_size": kernel}
    return b.call(b.layer("ConvTranspose1d", drawn, **sizes, **attrs), x)


@block(FAMILY, "mm", rank(2))
def draw_mm(b: Builder, x: str) -> str:
    """``torch.mm`` with a weight of [in, out]."""
    return b.step("mm", x, b.weight((b.shape(x)[1], b.channels()), DEPTH))


@block(FAMILY, "addmm", rank(2))
def draw_addmm(b: Builder, x: str) -> str:
    """``torch.addmm`` with a weight of [in, out] and a bias of [out]."""
    outer = b.channels()
    bias = b.weight((outer,), DEPTH - 1)
    return b.step("addmm", bias, x, b.weight((b.shape(x)[1], outer), DEPTH))


@block(FAMILY, "matmul", matrix_like)
def draw_matmul(b: Builder, x: str) -> str:
    """``torch.matmul`` of an activation of any rank with a weight of [in, out]."""
    return b.step("matmul", x, b.weight((b.shape(x)[-1], b.channels()), DEPTH))


@block(FAMILY, "batched-matmul", rank(3), static=True)
def draw_batched_matmul(b: Builder, x: str) -> str:
    """``torch.bmm`` or ``torch.baddbmm`` with a computed weight for each batch."""
    batch, rows, inner = b.shape(x)
    outer = b.channels()
    drawn = b.weight((batch, inner, outer), DEPTH)
    if b.coin():
        return b.step("baddbmm", b.weight((batch, rows, outer), DEPTH - 1), x, drawn)
    return b.step("bmm", x, drawn)


@block(FAMILY, "einsum", rank(3))
def draw_einsum(b: Builder, x: str) -> str:
    """``torch.einsum`` of an activation and a computed weight."""
    return b.step("einsum", x, b.weight((b.channels(), b.shape(x)[-1]), DEPTH))


@block(FAMILY, "bilinear", matrix_like, often=3)
def draw_bilinear(b: Builder, x: str) -> str:
    """``F.bilinear``, which ExecuTorch does not take."""
    inner = b.shape(x)[-1]
    return b.step("bilinear", x, x, b.weight((b.channels(), inner, inner), DEPTH))


@block(FAMILY, "prelu", rank(4))
def draw_prelu(b: Builder, x: str) -> str:
    """``F.prelu`` with computed slopes."""
    return b.step("prelu", x, b.weight(b.shape(x)[1:2], DEPTH))


@block(FAMILY, "batch-norm", rank(3))
def draw_batch_norm(b: Builder, x: str) -> str:
    """A convolution and a batch norm with a computed affine."""
    channels, outer = b.shape(x)[1], b.channels()
    attrs = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
    x = b.step("conv1d", x, b.weight((outer, channels, 3), DEPTH), **attrs)
    statistics = b.tensor("buffer", (outer,)), b.tensor("buffer", (outer,), "positive")
    affine = b.weight((outer,), DEPTH - 1), b.tensor("parameter", (outer,))
    return b.step("batch_norm", x, *statistics, *affine)


@block(FAMILY, "layer-norm", matrix_like)
def draw_layer_norm(b: Builder, x: str) -> str:
    """``F.layer_norm`` with a computed affine."""
    shape = b.shape(x)[-1:]
    return b.step("layer_norm", x, b.weight(shape, DEPTH), b.tensor("parameter", shape))


@block(FAMILY, "group-norm", lambda shape: len(shape) in (3, 4) and math.prod(shape) > 2)
def draw_group_norm(b: Builder, x: str) -> str:
    """``F.group_norm`` with a computed affine."""
    shape = b.shape(x)[1:2]
    groups = 2 if shape[0] % 2 == 0 else 1
    return b.step("group_norm", x, b.weight(shape, DEPTH), b.tensor("parameter", shape), groups=groups)


@block(FAMILY, "computed-bias", matrix_like)
def draw_computed_bias(b: Builder, x: str) -> str:
    """A linear whose weight is a plain parameter and whose bias is computed."""
    inner, outer = b.shape(x)[-1], b.channels()
    bias = b.weight((outer,), DEPTH)
    return b.step("linear", x, b.tensor("parameter", (outer, inner)), bias)


@block(FAMILY, "shared-bias", matrix_like)
def draw_shared_bias(b: Builder, x: str) -> str:
    """One computed bias that two linears add."""
    inner, outer = b.shape(x)[-1], b.channels()
    bias = b.step("mul", b.weight((outer,), DEPTH - 1), b.tensor("parameter", (outer,)))
    first = b.step("linear", x, b.weight((outer, inner), DEPTH), bias)
    second = b.step("linear", x, b.tensor("parameter", (outer, inner)), bias)
    return b.step("add", first, second)


@block(FAMILY, "activation")
def draw_activation(b: Builder, x: str) -> str:
    """An elementwise activation function."""
    return b.step(b.pick(["relu", "sigmoid", "tanh"]), x)


@block(FAMILY, "mean", rank(3, 4))
def draw_mean(b: Builder, x: str) -> str:
    """The mean over the last dimension: one dimension less from here on."""
    return b.step("mean", x, dim=-1)


@block(FAMILY, "weight-on-activation", matrix_like, static=True)
def draw_weight_on_activation(b: Builder, x: str) -> str:
    """A computed value that is not the weight of a consumer: added to the activation."""
    return b.step("add", x, b.weight(b.pick([b.shape(x)[-1:], b.shape(x)[-2:]]), DEPTH, gemm=False))

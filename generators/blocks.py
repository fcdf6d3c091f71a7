"""Blocks around the GEMM consumers: a consumer with a drawn weight and bias, or a plain activation op.

They are members of the family ``consumers``, which every program may use: without a consumer there is
nothing to fold.
"""

from __future__ import annotations

from generators.builder import DEPTH, Builder
from generators.consumers import FAMILY
from generators.members import Admits, Shape, block, of_kind
from generators.program import Parametrization, Target
from generators.vocabulary import PARAMETRIZATIONS


def rank(*ranks: int) -> Admits:
    """Admits activations of these numbers of dimensions."""
    return lambda shape: len(shape) in ranks


def _bias(b: Builder, channels: int) -> list[str]:
    return [b.weight((channels,), DEPTH - 1)] if b.coin() else []


def _parametrizations(b: Builder, weight: Shape, bias: Shape | None) -> list[Parametrization]:
    """None, one or a chain of two on the weight; on the bias now and then."""
    allowed = [member for member in of_kind("layer") if member.name in b.members]
    drawn: list[Parametrization] = []
    for _ in range(b.integer(0, 2) if allowed else 0):
        target: Target = "bias" if bias and b.pick([False, False, False, True]) else "weight"
        shape = bias if bias and target == "bias" else weight
        chained = any(item.target == target for item in drawn)
        fits = [
            member
            for member in allowed
            if member.admits(shape) and not (chained and PARAMETRIZATIONS[member.name].first)
        ]
        if fits:
            drawn.append(b.pick(fits).draw(b, target))
    return drawn


@block(FAMILY, "linear", lambda shape: len(shape) > 1)
def draw_linear(b: Builder, x: str) -> str:
    """``F.linear`` over the last dimension."""
    shape = (b.channels(), b.shape(x)[-1])
    return b.step("linear", x, b.weight(shape, DEPTH), *_bias(b, shape[0]))


@block(FAMILY, "linear-layer", lambda shape: len(shape) > 1)
def draw_linear_layer(b: Builder, x: str) -> str:
    """``nn.Linear``, perhaps under parametrizations, called once or twice."""
    inner, outer, bias = b.shape(x)[-1], b.channels(), b.coin()
    drawn = _parametrizations(b, (outer, inner), (outer,) if bias else None)
    return b.call(b.layer("Linear", drawn, in_features=inner, out_features=outer, bias=bias), x)


def _conv_attrs(b: Builder, channels: int) -> dict[str, int]:
    groups = b.pick([size for size in (1, 2, channels) if channels % size == 0])
    return {"stride": b.integer(1, 2), "padding": b.integer(0, 2), "groups": groups}


@block(FAMILY, "conv1d", rank(3))
def draw_conv1d(b: Builder, x: str) -> str:
    """``F.conv1d``, also grouped and depthwise."""
    channels, length = b.shape(x)[1:]
    attrs = _conv_attrs(b, channels)
    kernel = b.integer(1, min(3, length))
    outer = attrs["groups"] * b.integer(1, 2)
    drawn = b.weight((outer, channels // attrs["groups"], kernel), DEPTH)
    return b.step("conv1d", x, drawn, *_bias(b, outer), dilation=1, **attrs)


@block(FAMILY, "conv1d-layer", rank(3))
def draw_conv1d_layer(b: Builder, x: str) -> str:
    """``nn.Conv1d``, perhaps under parametrizations."""
    channels, length = b.shape(x)[1:]
    attrs = _conv_attrs(b, channels)
    kernel = b.integer(1, min(3, length))
    return _conv_layer(b, x, "Conv1d", (kernel,), dilation=1, **attrs)


@block(FAMILY, "conv2d", rank(4))
def draw_conv2d(b: Builder, x: str) -> str:
    """``F.conv2d``, also grouped and depthwise."""
    channels, height, width = b.shape(x)[1:]
    attrs = _conv_attrs(b, channels)
    kernel = b.integer(1, min(3, height, width))
    outer = attrs["groups"] * b.integer(1, 2)
    drawn = b.weight((outer, channels // attrs["groups"], kernel, kernel), DEPTH)
    return b.step("conv2d", x, drawn, *_bias(b, outer), dilation=1, **attrs)


@block(FAMILY, "conv2d-layer", rank(4))
def draw_conv2d_layer(b: Builder, x: str) -> str:
    """``nn.Conv2d``, perhaps under parametrizations."""
    channels, height, width = b.shape(x)[1:]
    attrs = _conv_attrs(b, channels)
    kernel = b.integer(1, min(3, height, width))
    return _conv_layer(b, x, "Conv2d", (kernel, kernel), dilation=1, **attrs)


def _conv_layer(b: Builder, x: str, kind: str, kernel: Shape, **attrs: int) -> str:
    inner, groups, bias = b.shape(x)[1], attrs["groups"], b.coin()
    outer = groups * b.integer(1, 2)
    weight = (outer, inner // groups, *kernel)
    drawn = _parametrizations(b, weight, (outer,) if bias else None)
    sizes = {"in_channels": inner, "out_channels": outer, "kernel_size": kernel[0], "bias": bias}
    return b.call(b.layer(kind, drawn, **sizes, **attrs), x)


@block(FAMILY, "conv-transpose1d", rank(3))
def draw_conv_transpose1d(b: Builder, x: str) -> str:
    """``F.conv_transpose1d``."""
    channels = b.shape(x)[1]
    outer = b.channels()
    drawn = b.weight((channels, outer, b.integer(1, 3)), DEPTH)
    bias = _bias(b, outer)
    return b.step("conv_transpose1d", x, drawn, *bias, stride=b.integer(1, 2), padding=0, groups=1)


@block(FAMILY, "conv-transpose1d-layer", rank(3))
def draw_conv_transpose1d_layer(b: Builder, x: str) -> str:
    """``nn.ConvTranspose1d``, perhaps under parametrizations."""
    channels, outer, kernel, bias = b.shape(x)[1], b.channels(), b.integer(1, 3), b.coin()
    drawn = _parametrizations(b, (channels, outer, kernel), (outer,) if bias else None)
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


@block(FAMILY, "matmul", lambda shape: len(shape) > 1)
def draw_matmul(b: Builder, x: str) -> str:
    """``torch.matmul`` of an activation of any rank with a weight of [in, out]."""
    return b.step("matmul", x, b.weight((b.shape(x)[-1], b.channels()), DEPTH))


@block(FAMILY, "packed-projections", rank(2, 3))
def draw_packed_projections(b: Builder, x: str) -> str:
    """Three linears that share one packed weight, chunked: attention's in-projection."""
    inner, outer = b.shape(x)[-1], b.channels()
    packed = b.weight((3 * outer, inner), DEPTH - 1)
    first, second, third = (b.step("linear", x, part) for part in b.steps("chunk", packed, chunks=3, dim=0))
    return b.step("add", b.step("mul", first, second), third)


@block(FAMILY, "activation")
def draw_activation(b: Builder, x: str) -> str:
    """An elementwise activation function."""
    return b.step(b.pick(["relu", "sigmoid", "tanh"]), x)


@block(FAMILY, "mean", rank(3, 4))
def draw_mean(b: Builder, x: str) -> str:
    """The mean over the last dimension: one dimension less from here on."""
    return b.step("mean", x, dim=-1)


@block(FAMILY, "weight-on-activation")
def draw_weight_on_activation(b: Builder, x: str) -> str:
    """A computed value that is not the weight of a consumer: added to the activation."""
    return b.step("add", x, b.weight(b.shape(x)[-1:], DEPTH - 1))

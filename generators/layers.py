"""``torch.nn`` layers that own a weight: their constructors, and the shapes they own and give."""

from __future__ import annotations

from collections.abc import Callable

from generators.consumers import (
    CONV_ATTRS,
    TRANSPOSED_ATTRS,
    conv_transpose_type,
    conv_type,
    linear_type,
)
from generators.program import Attributes
from generators.vocabulary import LAYERS, Attr, LayerKind, Type, expect, number

CHANNELS = Attr("int", 1, 4096)
KERNEL = Attr("int", 1, 256)
BIAS = Attr("bool")
CHANNELLED = {"in_channels": CHANNELS, "out_channels": CHANNELS, "kernel_size": KERNEL}


def _groups_divide(attrs: Attributes) -> None:
    groups = number(attrs, "groups")
    for side in ("in_channels", "out_channels"):
        expect(number(attrs, side) % groups == 0, f"{side} divisible by groups={groups}", attrs[side])


def _conv(name: str, rank: int) -> LayerKind:
    def weight(attrs: Attributes) -> tuple[int, ...]:
        inner = number(attrs, "in_channels") // number(attrs, "groups")
        return (number(attrs, "out_channels"), inner) + (number(attrs, "kernel_size"),) * rank

    def infer(data: Type, attrs: Attributes) -> Type:
        return conv_type(rank, [data, Type(weight(attrs))], attrs)[0]

    return LayerKind(
        name,
        f"nn.{name}({{in_channels}}, {{out_channels}}, {{kernel_size}}, stride={{stride}}, "
        "padding={padding}, dilation={dilation}, groups={groups}, bias={bias})",
        {**CHANNELLED, **CONV_ATTRS, "bias": BIAS},
        infer,
        weight,
        lambda attrs: (number(attrs, "out_channels"),) if attrs["bias"] else None,
        _groups_divide,
    )


def _conv_transpose1d() -> LayerKind:
    def weight(attrs: Attributes) -> tuple[int, ...]:
        outer = number(attrs, "out_channels") // number(attrs, "groups")
        return (number(attrs, "in_channels"), outer, number(attrs, "kernel_size"))

    return LayerKind(
        "ConvTranspose1d",
        "nn.ConvTranspose1d({in_channels}, {out_channels}, {kernel_size}, stride={stride}, "
        "padding={padding}, groups={groups}, bias={bias})",
        {**CHANNELLED, **TRANSPOSED_ATTRS, "bias": BIAS},
        lambda data, attrs: conv_transpose_type([data, Type(weight(attrs))], attrs)[0],
        weight,
        lambda attrs: (number(attrs, "out_channels"),) if attrs["bias"] else None,
        _groups_divide,
    )


def _linear() -> LayerKind:
    weight: Callable[[Attributes], tuple[int, ...]] = lambda attrs: (  # noqa: E731
        number(attrs, "out_features"),
        number(attrs, "in_features"),
    )
    return LayerKind(
        "Linear",
        "nn.Linear({in_features}, {out_features}, bias={bias})",
        {"in_features": CHANNELS, "out_features": CHANNELS, "bias": BIAS},
        lambda data, attrs: linear_type([data, Type(weight(attrs))], attrs)[0],
        weight,
        lambda attrs: (number(attrs, "out_features"),) if attrs["bias"] else None,
    )


def _embedding() -> LayerKind:
    def infer(data: Type, attrs: Attributes) -> Type:
        expect(data.dtype == "int64", "an int64 index", data)
        return Type((*data.shape, number(attrs, "embedding_dim")))

    return LayerKind(
        "Embedding",
        "nn.Embedding({num_embeddings}, {embedding_dim})",
        {"num_embeddings": CHANNELS, "embedding_dim": CHANNELS},
        infer,
        lambda attrs: (number(attrs, "num_embeddings"), number(attrs, "embedding_dim")),
        lambda attrs: None,
        gemm=False,
    )


for kind in (_linear(), _embedding(), _conv("Conv1d", 1), _conv("Conv2d", 2), _conv_transpose1d()):
    LAYERS[kind.name] = kind

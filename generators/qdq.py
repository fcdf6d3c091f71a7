"""Family ``quantization``, by hand: chains of quantized_decomposed ops on activations and on weights.

Schemas: ``torch/ao/quantization/fx/_decomposed.py`` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Sequence

from generators.builder import Builder
from generators.members import Shape, block, rank, ranked, weight
from generators.program import Attributes
from generators.quantization import FAMILY
from generators.vocabulary import Attr, Effect, Op, Type, add_op, dim_of, expect, number


def _quantize(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "float32", "a float32 argument", types[0])
    return [Type(types[0].shape, "int8")]


def _dequantize(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "int8", "an int8 argument", types[0])
    return [Type(types[0].shape)]


def _quantize_by(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[1].shape == () and types[2].shape == (), "a scalar scale and zero point", types[1])
    return _quantize(types[:1], attrs)


def _dequantize_by(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[1].shape == () and types[2].shape == (), "a scalar scale and zero point", types[1])
    return _dequantize(types[:1], attrs)


def _qparams(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(types[0].dtype == "float32", "a float32 argument", types[0])
    return [Type((), "float64"), Type((), "int64")]


def _per_channel(types: Sequence[Type], attrs: Attributes) -> None:
    size = types[0].shape[dim_of(types[0].shape, attrs, "axis")]
    expect(types[1] == Type((size,)), f"a float32 scale for each of {size} channels", types[1])
    expect(types[2] == Type((size,), "int64"), f"an int64 zero point for each of {size} channels", types[2])


def _quantize_channels(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    _per_channel(types, attrs)
    return _quantize(types[:1], attrs)


def _dequantize_channels(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    _per_channel(types, attrs)
    return _dequantize(types[:1], attrs)


def _per_group(types: Sequence[Type], attrs: Attributes) -> None:
    size = number(attrs, "group_size")
    expect(len(types[0].shape) == 2, "a matrix", types[0])
    rows, columns = types[0].shape
    expect(columns % size == 0 and columns > size, f"rows of several groups of {size}", types[0])
    groups = (rows, columns // size)
    expect(types[1] == Type(groups), f"a float32 scale for each of {groups} groups", types[1])
    expect(types[2] == Type(groups, "int64"), f"an int64 zero point for each of {groups} groups", types[2])


def _quantize_groups(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    _per_group(types, attrs)
    return _quantize(types[:1], attrs)


def _dequantize_groups(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    _per_group(types, attrs)
    return _dequantize(types[:1], attrs)


def _token_qparams(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(
        types[0].dtype == "float32" and len(types[0].shape) > 0, "a float32 argument with tokens", types[0]
    )
    shape = (*types[0].shape[:-1], 1)
    return [Type(shape, "float64"), Type(shape, "int64")]


def _quantize_tokens(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    expect(list(types[1:]) == _token_qparams(types[:1], attrs), "a scale and zero point a token", types[1])
    return _quantize(types[:1], attrs)


def _dequantize_tokens(types: Sequence[Type], attrs: Attributes) -> list[Type]:
    scale = Type((*types[0].shape[:-1], 1), "float64")
    expect(types[1] == scale, "a scale and zero point a token", types[1])
    return _dequantize(types[:1], attrs)


PER_TENSOR = {"scale": Attr("float", 1e-6, 1e3), "zero_point": Attr("int", -128, 127)}
PER_CHANNEL = {"axis": Attr("int", -4, 3)}
PER_GROUP = {"group_size": Attr("int", 2, 4096)}
NAMESPACE = "torch.ops.quantized_decomposed"
REGISTERS = "import torch.ao.quantization.fx._decomposed  # registers the quantized_decomposed ops"
for op in (
    Op(
        "quantize",
        FAMILY,
        NAMESPACE + ".quantize_per_tensor.default({0}, {scale}, {zero_point}, -128, 127, torch.int8)",
        _quantize,
        attrs=PER_TENSOR,
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "dequantize",
        FAMILY,
        NAMESPACE + ".dequantize_per_tensor.default({0}, {scale}, {zero_point}, -128, 127, torch.int8)",
        _dequantize,
        attrs=PER_TENSOR,
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "choose_qparams",
        FAMILY,
        NAMESPACE + ".choose_qparams.tensor({0}, -128, 127, 1e-5, torch.int8)",
        _qparams,
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "quantize_by",
        FAMILY,
        NAMESPACE + ".quantize_per_tensor.tensor({args}, -128, 127, torch.int8)",
        _quantize_by,
        (3, 3),
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "dequantize_by",
        FAMILY,
        NAMESPACE + ".dequantize_per_tensor.tensor({args}, -128, 127, torch.int8)",
        _dequantize_by,
        (3, 3),
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "quantize_channels",
        FAMILY,
        NAMESPACE + ".quantize_per_channel.default({0}, {1}.double(), {2}, {axis}, -128, 127, torch.int8)",
        _quantize_channels,
        (3, 3),
        attrs=PER_CHANNEL,
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "dequantize_channels",
        FAMILY,
        NAMESPACE + ".dequantize_per_channel.default({0}, {1}.double(), {2}, {axis}, -128, 127, torch.int8)",
        _dequantize_channels,
        (3, 3),
        attrs=PER_CHANNEL,
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "quantize_groups",
        FAMILY,
        NAMESPACE + ".quantize_per_channel_group.default({args}, -8, 7, torch.int8, {group_size})",
        _quantize_groups,
        (3, 3),
        attrs=PER_GROUP,
        effect=Effect.QDQ,
        imports=REGISTERS,
        stops="lower",
    ),
    Op(
        "dequantize_groups",
        FAMILY,
        NAMESPACE
        + ".dequantize_per_channel_group.default({args}, -8, 7, torch.int8, {group_size}, torch.float32)",
        _dequantize_groups,
        (3, 3),
        attrs=PER_GROUP,
        effect=Effect.QDQ,
        imports=REGISTERS,
        stops="lower",
    ),
    Op(
        "choose_token_qparams",
        FAMILY,
        NAMESPACE + ".choose_qparams_per_token_asymmetric.default({0}, torch.int8)",
        _token_qparams,
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "quantize_tokens",
        FAMILY,
        NAMESPACE + ".quantize_per_token.default({args}, -128, 127, torch.int8)",
        _quantize_tokens,
        (3, 3),
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
    Op(
        "dequantize_tokens",
        FAMILY,
        NAMESPACE + ".dequantize_per_token.default({args}, -128, 127, torch.int8, torch.float32)",
        _dequantize_tokens,
        (3, 3),
        effect=Effect.QDQ,
        imports=REGISTERS,
    ),
):
    add_op(op)


def _chain(b: Builder, value: str) -> str:
    attrs = {"scale": b.pick([0.05, 0.01]), "zero_point": b.pick([0, 3])}
    return b.step("dequantize", b.step("quantize", value, **attrs), **attrs)


@block(FAMILY, "qdq-activation")
def draw_qdq_activation(b: Builder, x: str) -> str:
    """A per-tensor quantize and dequantize written by hand on the activation."""
    return _chain(b, x)


@block(FAMILY, "qdq-dynamic")
def draw_qdq_dynamic(b: Builder, x: str) -> str:
    """Quantize and dequantize with a scale chosen at run time, written by hand on the activation."""
    scale, zero_point = b.steps("choose_qparams", x)
    return b.step("dequantize_by", b.step("quantize_by", x, scale, zero_point), scale, zero_point)


@weight(FAMILY, "qdq-weight")
def draw_qdq_weight(b: Builder, shape: Shape, depth: int) -> str:
    """A per-tensor quantize and dequantize written by hand on a weight, which may itself be computed."""
    return _chain(b, b.weight(shape, depth))


def _qparams_of(b: Builder, shape: Shape) -> tuple[str, str]:
    """Stored scales and zero points, which no fold may touch."""
    scales = b.tensor("buffer", shape, "positive")
    return scales, b.tensor("buffer", shape, dtype="int64", high=4)


@weight(FAMILY, "qdq-channels", ranked)
def draw_qdq_channels(b: Builder, shape: Shape, depth: int) -> str:
    """A per-channel quantize and dequantize written by hand on a weight, which may itself be computed."""
    qparams, value = _qparams_of(b, shape[:1]), b.weight(shape, depth)
    quantized = b.step("quantize_channels", value, *qparams, axis=0)
    return b.step("dequantize_channels", quantized, *qparams, axis=0)


@weight(FAMILY, "qdq-groups", lambda shape: len(shape) == 2 and shape[1] % 2 == 0 and shape[1] > 2)
def draw_qdq_groups(b: Builder, shape: Shape, depth: int) -> str:
    """A per-group quantize and dequantize written by hand on a weight, which may itself be computed."""
    rows, columns = shape
    size = columns // 2
    qparams, value = _qparams_of(b, (rows, 2)), b.weight(shape, depth)
    quantized = b.step("quantize_groups", value, *qparams, group_size=size)
    return b.step("dequantize_groups", quantized, *qparams, group_size=size)


@block(FAMILY, "qdq-tokens", rank(2, 3))
def draw_qdq_tokens(b: Builder, x: str) -> str:
    """Quantize and dequantize with a scale for each token, written by hand on the activation."""
    qparams = b.steps("choose_token_qparams", x)
    return b.step("dequantize_tokens", b.step("quantize_tokens", x, *qparams), *qparams)

"""Family ``quantization``, by hand: chains of quantized_decomposed ops on activations and on weights.

Schemas: ``torch/ao/quantization/fx/_decomposed.py`` of torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from generators.builder import Builder
from generators.members import Shape, block, rank, ranked, weight
from generators.program import Attributes
from generators.quantization import FAMILY
from generators.vocabulary import DIM, Attr, Effect, Infer, Op, Type, add_op, dim_of, expect, floats, number

ASYMMETRIC, SYMMETRIC = ["float64", "int64"], ["float32", "float32"]
"""Dtypes of the scales and zero points that ops choose, with a zero point to choose and without."""
Check = Callable[[Sequence[Type], Attributes], None]


def _qparams(types: Sequence[Type], shape: Shape, dtype: str, one_for_each: str) -> None:
    wanted = (Type(shape, dtype), Type(shape, "int64"))
    got = ", ".join(str(item) for item in types)
    expect(tuple(types) == wanted, f"a {dtype} scale and an int64 zero point {one_for_each}", got)


def _of_tensor(types: Sequence[Type], attrs: Attributes) -> None:
    _qparams(types[1:], (), "float64", "without dimensions")


def _of_channels(types: Sequence[Type], attrs: Attributes) -> None:
    shape = types[0].shape
    _qparams(types[1:], (shape[dim_of(shape, attrs, "axis")],), "float32", "for each channel")


def _of_groups(types: Sequence[Type], attrs: Attributes) -> None:
    size = number(attrs, "group_size")
    expect(len(types[0].shape) == 2, "a matrix", types[0])
    rows, columns = types[0].shape
    expect(columns % size == 0 and columns > size, f"rows of several groups of {size}", types[0])
    _qparams(types[1:], (rows, columns // size), "float32", "for each group")


def _tokens(shape: Shape) -> Shape:
    expect(len(shape) > 0, "tokens", "a scalar")
    return (*shape[:-1], 1)


def _of_tokens(types: Sequence[Type], attrs: Attributes) -> None:
    shape = _tokens(types[0].shape)
    dtypes = [item.dtype for item in types[1:]]
    expect(
        all(item.shape == shape for item in types[1:]), "a scale and a zero point for each token", types[1:]
    )
    expect(dtypes in (ASYMMETRIC, SYMMETRIC), f"dtypes {ASYMMETRIC} or {SYMMETRIC}", dtypes)


def _chosen(shape_of: Callable[[Shape], Shape], dtypes: Sequence[str] = ASYMMETRIC) -> Infer:
    """The scale and zero point that an op chooses at run time."""

    def infer(types: Sequence[Type], attrs: Attributes) -> list[Type]:
        floats(types)
        return [Type(shape_of(types[0].shape), dtype) for dtype in dtypes]

    return infer


def _between(source: str, target: str, check: Check) -> Infer:
    def infer(types: Sequence[Type], attrs: Attributes) -> list[Type]:
        expect(types[0].dtype == source, f"a {source} argument", types[0])
        check(types, attrs)
        return [Type(types[0].shape, target)]

    return infer


def _add(name: str, call: str, infer: Infer, arity: int = 1, **options: Any) -> None:
    code = f"torch.ops.quantized_decomposed.{call}"
    add_op(Op(name, FAMILY, code, infer, (arity, arity), effect=Effect.QDQ, imports=REGISTERS, **options))


def _add_pair(
    suffix: str, op: str, args: str, check: Check, arity: int = 3, out: str = "", **options: Any
) -> None:
    """The two ops of a chain; ``out`` is what only the dequantizing one takes."""
    to, back = _between("float32", "int8", check), _between("int8", "float32", check)
    _add(f"quantize{suffix}", f"quantize_{op}({args})", to, arity, **options)
    _add(f"dequantize{suffix}", f"dequantize_{op}({args}{out})", back, arity, **options)


REGISTERS = "import torch.ao.quantization.fx._decomposed  # registers the quantized_decomposed ops"
BYTE = "-128, 127, torch.int8"
PER_TENSOR = {"scale": Attr("float", 1e-6, 1e3), "zero_point": Attr("int", -128, 127)}
PER_CHANNEL = {"axis": DIM}
PER_GROUP = {"group_size": Attr("int", 2, 4096)}

_add_pair("", "per_tensor.default", f"{{0}}, {{scale}}, {{zero_point}}, {BYTE}", lambda types, attrs: None, 1,
          attrs=PER_TENSOR)  # fmt: skip
_add("choose_qparams", "choose_qparams.tensor({0}, -128, 127, 1e-5, torch.int8)", _chosen(lambda shape: ()))
_add_pair("_by", "per_tensor.tensor", f"{{args}}, {BYTE}", _of_tensor)
_add_pair("_channels", "per_channel.default", f"{{0}}, {{1}}.double(), {{2}}, {{axis}}, {BYTE}", _of_channels,
          attrs=PER_CHANNEL)  # fmt: skip
# No out variant of these two ships.
_add_pair("_groups", "per_channel_group.default", "{args}, -8, 7, torch.int8, {group_size}", _of_groups,
          out=", torch.float32", attrs=PER_GROUP, stops="lower")  # fmt: skip
_add("choose_token_qparams", "choose_qparams_per_token_asymmetric.default({0}, torch.int8)", _chosen(_tokens))
# No out variant of this one ships.
_add("choose_token_scales", "choose_qparams_per_token.default({0}, torch.int8)", _chosen(_tokens, SYMMETRIC),
     stops="lower")  # fmt: skip
_add_pair("_tokens", "per_token.default", f"{{args}}, {BYTE}", _of_tokens, out=", torch.float32")


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


def _stored_chain(b: Builder, scheme: str, value: str, shape: Shape, **attrs: Any) -> str:
    """A chain with one stored scale and zero point, which no fold may touch, for each of ``shape``."""
    scales = b.tensor("buffer", shape, "positive")
    zero_points = b.tensor("buffer", shape, dtype="int64", high=4)
    quantized = b.step(f"quantize_{scheme}", value, scales, zero_points, **attrs)
    return b.step(f"dequantize_{scheme}", quantized, scales, zero_points, **attrs)


@weight(FAMILY, "qdq-channels", ranked)
def draw_qdq_channels(b: Builder, shape: Shape, depth: int) -> str:
    """A per-channel quantize and dequantize written by hand on a weight, which may itself be computed."""
    axis = b.integer(0, len(shape) - 1)
    return _stored_chain(b, "channels", b.weight(shape, depth), (shape[axis],), axis=axis)


@weight(FAMILY, "qdq-groups", lambda shape: len(shape) == 2 and shape[1] % 2 == 0 and shape[1] > 2)
def draw_qdq_groups(b: Builder, shape: Shape, depth: int) -> str:
    """A per-group quantize and dequantize written by hand on a weight, which may itself be computed."""
    rows, columns = shape
    return _stored_chain(b, "groups", b.weight(shape, depth), (rows, 2), group_size=columns // 2)


@weight(FAMILY, "qdq-stored", ranked)
def draw_qdq_stored(b: Builder, shape: Shape, depth: int) -> str:
    """A weight that is stored in int8, with a scale for each channel, and dequantized in the graph."""
    axis = b.integer(0, len(shape) - 1)
    scales = b.tensor("buffer", (shape[axis],), "positive")
    zero_points = b.tensor("buffer", (shape[axis],), dtype="int64", high=4)
    stored = b.tensor("buffer", shape, dtype="int8", high=100)
    return b.step("dequantize_channels", stored, scales, zero_points, axis=axis)


@block(FAMILY, "qdq-tokens", rank(2, 3))
def draw_qdq_tokens(b: Builder, x: str) -> str:
    """Quantize and dequantize with a scale and zero point for each token, by hand, on the activation."""
    qparams = b.steps("choose_token_qparams", x)
    return b.step("dequantize_tokens", b.step("quantize_tokens", x, *qparams), *qparams)


@block(FAMILY, "qdq-token-scales", rank(2, 3), often=3)
def draw_qdq_token_scales(b: Builder, x: str) -> str:
    """Quantize and dequantize with a scale for each token and no zero point, by hand, on the activation."""
    qparams = b.steps("choose_token_scales", x)
    return b.step("dequantize_tokens", b.step("quantize_tokens", x, *qparams), *qparams)

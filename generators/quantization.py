"""Family ``quantization``: Q/DQ chains written by hand, and the quantization flows of PT2E and torchao.

The flows are properties of the whole program: ``QUANTIZATIONS`` holds the statements that turn ``model``
into its quantized form inside ``build()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from generators.builder import Builder
from generators.members import Member, Shape, any_shape, block, named, weight
from generators.program import Attributes
from generators.vocabulary import Attr, Effect, Op, Type, add_op, expect

FAMILY = "quantization"
GROUP = 32


@dataclass(frozen=True)
class Quantization:
    """A quantization flow: what it imports, its statements, and which GEMMs it reaches.

    ``reach`` is ``layers`` where only ``nn.Linear`` layers without a parametrization are quantized, ``all``
    where the flow annotates every op that it knows.
    """

    name: str
    sentence: str
    imports: str
    code: str
    reach: Literal["layers", "all"]


QUANTIZATIONS: dict[str, Quantization] = {}

PT2E_IMPORTS = """from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e"""
PT2E_CODE = """inputs = INPUTS['forward']()
config = xnnpack_quantizer.get_symmetric_quantization_config({config})
quantizer = xnnpack_quantizer.XNNPACKQuantizer().set_global(config)
with torch.no_grad():
    model = prepare_pt2e(torch.export.export(model, inputs).module(), quantizer)
    model(*inputs)
    model = convert_pt2e(model)"""
TORCHAO_CODE = """torchao.quantize_(model, {config}, lambda module, name: type(module) is nn.Linear)"""
TORCHAO_IMPORTS = """import torchao.quantization as torchao
from torchao.quantization.granularity import {granularity}"""

for flow in (
    Quantization(
        "pt2e_static",
        "PT2E with the XNNPACK quantizer: static activations, per-channel weights.",
        PT2E_IMPORTS,
        PT2E_CODE.format(config="is_per_channel=True"),
        "all",
    ),
    Quantization(
        "pt2e_dynamic",
        "PT2E with the XNNPACK quantizer: dynamic activations, per-channel weights.",
        PT2E_IMPORTS,
        PT2E_CODE.format(config="is_per_channel=True, is_dynamic=True"),
        "all",
    ),
    Quantization(
        "torchao_8da4w",
        "torchao: dynamic 8-bit activations, 4-bit weights in groups of 32.",
        TORCHAO_IMPORTS.format(granularity="PerGroup"),
        TORCHAO_CODE.format(
            config="torchao.Int8DynamicActivationIntxWeightConfig("
            "weight_dtype=torch.int4, weight_granularity=PerGroup(32))"
        ),
        "layers",
    ),
    Quantization(
        "torchao_8w",
        "torchao: 8-bit weights per channel, float activations.",
        TORCHAO_IMPORTS.format(granularity="PerAxis"),
        TORCHAO_CODE.format(
            config="torchao.IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))"
        ),
        "layers",
    ),
):
    QUANTIZATIONS[flow.name] = flow


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


PER_TENSOR = {"scale": Attr("float", 1e-6, 1e3), "zero_point": Attr("int", -128, 127)}
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


def _use(name: str) -> Callable[[Builder], None]:
    def draw(b: Builder) -> None:
        b.options["quantization"] = name
        if name.startswith("torchao"):
            # torchao's groups of 32 must divide a linear's input features.
            b.widths, b.shapes = (GROUP,), ((2, GROUP), (2, 4, GROUP), (1, 4, 5, GROUP))

    return draw


NO_FLOW = frozenset(
    {
        "second-method",
        "written-elsewhere",
        "shared-by-methods",
        "dynamic-batch",
        "dynamic-length",
        "joint",
        "strict",
        "grad",
    }
)
"""Flows quantize ``forward`` at fixed sizes, under ``no_grad``."""
for flow in QUANTIZATIONS.values():
    # PT2E exports, calibrates and converts: such a program costs several times any other.
    often = 1 if flow.name.startswith("pt2e") else 4
    others = frozenset(QUANTIZATIONS) - {flow.name}
    named(Member(flow.name, FAMILY, "whole", flow.sentence, _use(flow.name), any_shape, often,
                 excludes=NO_FLOW | others))  # fmt: skip

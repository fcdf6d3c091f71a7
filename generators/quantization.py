"""Family ``quantization``: the flows of PT2E and torchao; chains written by hand are in ``generators.qdq``.

The flows are properties of the whole program: ``QUANTIZATIONS`` holds the statements that turn ``model``
into its quantized form inside ``build()``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from generators.builder import Builder
from generators.members import Member, any_shape, named

FAMILY = "quantization"
GROUP = 32
ROWS = 8


@dataclass(frozen=True)
class Quantization:
    """A quantization flow: what it imports, its statements, and which GEMMs it reaches.

    ``reach`` is ``layers`` where only layers of ``kinds`` without a parametrization are quantized, ``all``
    where the flow annotates every op that it knows. ``stops`` is that of ``vocabulary.Op``.
    """

    name: str
    sentence: str
    imports: str
    code: str
    reach: Literal["layers", "all"]
    kinds: tuple[str, ...] = ("Linear",)
    stops: Literal["", "lower", "run"] = ""


QUANTIZATIONS: dict[str, Quantization] = {}

PT2E_IMPORTS = """from executorch.backends.xnnpack.quantizer import xnnpack_quantizer
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, {prepare}"""
# The default observer, of histograms, takes 0.2 s for each op, and finds other scales but no other graph.
OBSERVE = """observer = MinMaxObserver.with_args(eps=2**-12)
activations = replace(config.input_activation, observer_or_fake_quant_ctr=observer)
config = replace(config, input_activation=activations, output_activation=activations)
"""
OBSERVE_IMPORTS = """from dataclasses import replace
from torchao.quantization.pt2e import MinMaxObserver
"""
PT2E_CODE = """inputs = INPUTS['forward']()
config = xnnpack_quantizer.get_symmetric_quantization_config({config})
{observe}quantizer = xnnpack_quantizer.XNNPACKQuantizer().set_global(config)
with torch.no_grad():
    model = {prepare}(torch.export.export(model, inputs).module(), quantizer)
    model(*inputs)
    model = convert_pt2e(model)"""
# A hook, such as a pruning mask's, sets the weight anew before each call. Groups of 32 must fit in a row.
PLAIN_CODE = """def plain(module, name=''):
    hooked = module._forward_pre_hooks
    return type(module) is nn.{layer} and not hooked and module.weight.shape[1] % 32 == 0"""
TORCHAO_CODE = PLAIN_CODE + "\ntorchao.quantize_(model, {config}, plain)"
TORCHAO_IMPORTS = """import torchao.quantization as torchao
from torchao.quantization.granularity import {granularity}"""
REPLACE_CODE = """
layers = nn.ModuleDict({{name: layer for name, layer in model.named_children() if plain(layer)}})
for name, layer in {quantized}.items():
    setattr(model, name, layer)"""
CHILDREN_CODE = PLAIN_CODE + REPLACE_CODE
EMBEDDING_IMPORTS = (
    "from executorch.examples.models.llama.source_transformation.quantize import EmbeddingQuantHandler"
)


def _pt2e(name: str, sentence: str, config: str, prepare: str = "prepare_pt2e") -> Quantization:
    histograms = "is_dynamic" not in config and "is_qat" not in config
    imports = (OBSERVE_IMPORTS if histograms else "") + PT2E_IMPORTS.format(prepare=prepare)
    code = PT2E_CODE.format(config=config, prepare=prepare, observe=OBSERVE if histograms else "")
    return Quantization(name, f"PT2E with the XNNPACK quantizer: {sentence}", imports, code, "all")


def _torchao(name: str, sentence: str, config: str) -> Quantization:
    imports = TORCHAO_IMPORTS.format(granularity="PerGroup" if "PerGroup" in config else "PerAxis")
    code = TORCHAO_CODE.format(config=f"torchao.{config}", layer="Linear")
    return Quantization(name, f"torchao: {sentence}", imports, code, "layers")


def _embedding(name: str, sentence: str, options: str) -> Quantization:
    quantized = f"EmbeddingQuantHandler(layers, {options}).quantized_model()"
    code = CHILDREN_CODE.format(layer="Embedding", quantized=quantized)
    sentence = f"ExecuTorch's quantizer of Llama: {sentence}"
    return Quantization(name, sentence, EMBEDDING_IMPORTS, code, "layers", ("Embedding",))


DYNAMIC = "Int8DynamicActivationIntxWeightConfig"
WEIGHT_ONLY = "IntxWeightOnlyConfig"
EIGHT_BIT_ROWS = f"{WEIGHT_ONLY}(weight_dtype=torch.int8, granularity=PerAxis(0))"

for flow in (
    _pt2e("pt2e_per_tensor", "static activations, per-tensor weights.", ""),
    _pt2e("pt2e_static", "static activations, per-channel weights.", "is_per_channel=True"),
    _pt2e("pt2e_dynamic", "dynamic activations, per-channel weights.",
          "is_per_channel=True, is_dynamic=True"),
    _pt2e("pt2e_qc4w", "dynamic activations, 4-bit per-channel weights.",
          "is_per_channel=True, is_dynamic=True, weight_qmin=-8, weight_qmax=7"),
    _pt2e("pt2e_qat", "prepared for quantization-aware training and converted.",
          "is_per_channel=True, is_qat=True", "prepare_qat_pt2e"),
    _torchao("torchao_8da4w", "dynamic 8-bit activations, 4-bit weights in groups of 32.",
             f"{DYNAMIC}(weight_dtype=torch.int4, weight_granularity=PerGroup(32))"),
    _torchao("torchao_8da8w", "dynamic 8-bit activations, 8-bit weights per channel.",
             f"{DYNAMIC}(weight_dtype=torch.int8, weight_granularity=PerAxis(0))"),
    _torchao("torchao_8w", "8-bit weights per channel, float activations.",
             EIGHT_BIT_ROWS),
    _torchao("torchao_4w", "4-bit weights in groups of 32, float activations.",
             f"{WEIGHT_ONLY}(weight_dtype=torch.int4, granularity=PerGroup(32))"),
    Quantization(
        "torchao_embedding",
        "torchao: an embedding of 8-bit rows.",
        TORCHAO_IMPORTS.format(granularity="PerAxis"),
        TORCHAO_CODE.format(config=f"torchao.{EIGHT_BIT_ROWS}", layer="Embedding"),
        "layers",
        ("Embedding",),
        "lower",  # torchao::dequantize_affine outside of a linear has no out variant.
    ),
    _embedding("embedding_byte", "an embedding of 8-bit rows.", "bitwidth=8"),
    _embedding("embedding_4bit", "a packed embedding of 4-bit groups of 32.",
               "bitwidth=4, group_size=32, packed=True"),
    Quantization(
        "legacy_8da4w",
        "torchao's older quantizer: dynamic 8-bit activations, 4-bit weights in groups of 32.",
        "from torchao.quantization import Int8DynActInt4WeightQuantizer",
        CHILDREN_CODE.format(
            layer="Linear", quantized="Int8DynActInt4WeightQuantizer(groupsize=32).quantize(layers)"
        ),
        "layers",
    ),
):  # fmt: skip
    QUANTIZATIONS[flow.name] = flow


def _use(name: str) -> Callable[[Builder], None]:
    def draw(b: Builder) -> None:
        b.options["quantization"] = name
        if QUANTIZATIONS[name].reach == "all":
            return
        # Groups of 32 must divide a linear's input features.
        b.widths, b.shapes = (GROUP,), ((2, GROUP), (2, 4, GROUP), (1, 4, 5, GROUP))
        # One layer that is quantized for sure, before others that may be parametrized.
        if "Embedding" in QUANTIZATIONS[name].kinds:
            table = b.layer("Embedding", num_embeddings=ROWS, embedding_dim=GROUP)
            b.streams.append(b.call(table, b.input((2,), high=ROWS)))
        else:
            plain = b.layer("Linear", in_features=GROUP, out_features=GROUP, bias=b.coin())
            b.streams.append(b.call(plain, b.input((2, GROUP))))

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
    often = 3 if flow.name.startswith("pt2e") else 4
    others = frozenset(QUANTIZATIONS) - {flow.name}
    # prepare_qat_pt2e makes a float32 fake quantize of a float16 weight.
    half = {"half-linear"} if flow.name == "pt2e_qat" else set()
    named(Member(flow.name, FAMILY, "whole", flow.sentence, _use(flow.name), any_shape, often,
                 excludes=NO_FLOW | others | half))  # fmt: skip

"""The renderer: a program as Python source that a person would write.

What runs is what is shown: the module under test is built by executing this very text, and the stand-alone
script of a bug report is the same text with a main behind it. The source imports torch, torchao and
executorch, and nothing of this project. Only names that ``validate`` has admitted and literals reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from generators.program import Attribute, Input, Method, Program, Step, Tensor
from generators.quantization import QUANTIZATIONS
from generators.vocabulary import LAYERS, OPS, PARAMETRIZATIONS, layer_bias, layer_weight

INDENT = "    "


def render(program: Program) -> str:
    """Source with ``Model``, ``INPUTS`` (method -> inputs), ``CALLS``, ``quantize`` and ``build()``.

    ``program`` must be valid. Executing the source needs torch (and torchao, executorch where the program
    is quantized) and builds nothing until ``build()`` is called.
    """
    parts = [
        "\n".join(_imports(program)),
        *_classes(program),
        "\n".join(_model(program)),
        "\n".join(_calls(program)),
        "\n".join(_build(program)),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def literal(value: Attribute) -> str:
    """A literal as source; a tuple as ``(4, 8)``."""
    return repr(tuple(value)) if isinstance(value, (list, tuple)) else repr(value)


def _sizes(shape: tuple[int, ...]) -> str:
    return ", ".join(str(size) for size in shape) or "()"


def constant_values(tensor: Tensor) -> str:
    """The literal of an inline constant: distinct values, some negative, none zero."""
    values = [(7 * i % 11 - 4.5) / 4 for i in range(math.prod(tensor.shape))]
    return repr(values if tensor.shape else values[0])


def _imports(program: Program) -> Iterator[str]:
    text = _bodies(program)
    yield "import torch"
    if "F." in text or any("F." in source for source in _classes(program)):
        yield "import torch.nn.functional as F"
    yield "from torch import nn"
    kinds = [p.kind for layer in program.layers for p in layer.parametrizations]
    if any("parametrizations." in PARAMETRIZATIONS[kind].code for kind in kinds):
        yield "from torch.nn.utils import parametrizations"
    if any(PARAMETRIZATIONS[kind].source for kind in kinds):
        yield "from torch.nn.utils import parametrize"
    if "quantized_decomposed" in text:
        yield "import torch.ao.quantization.fx._decomposed  # registers the quantized_decomposed ops"
    if program.quantization:
        yield QUANTIZATIONS[program.quantization].imports


def _bodies(program: Program) -> str:
    return "\n".join(OPS[step.op].code for _, step in program.walk())


def _classes(program: Program) -> list[str]:
    kinds = dict.fromkeys(p.kind for layer in program.layers for p in layer.parametrizations)
    return [PARAMETRIZATIONS[kind].source for kind in kinds if PARAMETRIZATIONS[kind].source]


def _model(program: Program) -> Iterator[str]:
    yield "class Model(nn.Module):"
    init = list(_init(program))
    if init:
        yield INDENT + "def __init__(self):"
        yield INDENT * 2 + "super().__init__()"
        yield from (INDENT * 2 + line for line in init)
        yield ""
    for position, method in enumerate(program.methods):
        if position:
            yield ""
        names = ", ".join(["self", *(item.name for item in method.inputs)])
        yield INDENT + f"def {method.name}({names}):"
        yield from (INDENT * 2 + line for line in _method(program, method))


def _init(program: Program) -> Iterator[str]:
    for tensor in program.tensors:
        value = f"torch.{tensor.values}({_sizes(tensor.shape)})"
        if tensor.role == "parameter":
            yield f"self.{tensor.name} = nn.Parameter({value})"
        elif tensor.role == "buffer":
            yield f"self.register_buffer('{tensor.name}', {value})"
    for layer in program.layers:
        attrs = {name: literal(value) for name, value in layer.attrs.items()}
        yield f"self.{layer.name} = " + LAYERS[layer.kind].code.format(**attrs)
        for item in layer.parametrizations:
            owned = layer_weight(layer) if item.target == "weight" else layer_bias(layer)
            assert owned is not None
            yield PARAMETRIZATIONS[item.kind].code.format(
                layer=layer.name, target=item.target, shape=literal(owned.shape)
            )


def _method(program: Program, method: Method) -> Iterator[str]:
    names = {item.name: item.name for item in method.inputs}
    read = {arg for step in method.steps for arg in step.args} | set(method.outputs)
    for tensor in program.tensors:
        if tensor.role != "constant":
            names[tensor.name] = f"self.{tensor.name}"
        elif tensor.name in read:
            names[tensor.name] = tensor.name
            yield f"{tensor.name} = torch.tensor({constant_values(tensor)})"
    for step in method.steps:
        yield statement(step, [names[arg] for arg in step.args])
        names |= {out: out for out in step.outs}
    outputs = ", ".join(names[name] for name in method.outputs)
    yield f"return {outputs}"


def statement(step: Step, args: list[str]) -> str:
    """One step as a statement over arguments that are already source."""
    op = OPS[step.op]
    attrs = {
        name: str(step.attrs[name]) if attr.kind == "layer" else literal(step.attrs[name])
        for name, attr in op.attrs.items()
    }
    code = op.code.format(*args, args=", ".join(args), **attrs)
    return f"{', '.join(step.outs)} = {code}" if step.outs else code


def _input(item: Input) -> str:
    if item.high is None:
        return f"torch.randn({_sizes(item.shape)})"
    return f"torch.randint({item.high}, {literal(item.shape)})"


def _calls(program: Program) -> Iterator[str]:
    lambdas = [
        f"'{method.name}': lambda: ({', '.join(_input(item) for item in method.inputs)}"
        f"{',' if len(method.inputs) == 1 else ''})"
        for method in program.methods
    ]
    if len(lambdas) == 1:
        yield f"INPUTS = {{{lambdas[0]}}}"
    else:
        yield "INPUTS = {"
        yield from (f"{INDENT}{item}," for item in lambdas)
        yield "}"
    calls = ", ".join(f"('{call.method}', {call.seed})" for call in program.calls)
    yield f"CALLS = [{calls}]  # method, seed of its inputs"


def _build(program: Program) -> Iterator[str]:
    model = "Model().eval()"
    if program.quantization:
        yield "def quantize(model):"
        yield from (INDENT + line for line in QUANTIZATIONS[program.quantization].code.splitlines())
        yield INDENT + "return model"
        yield ""
        model = f"quantize({model})"
    yield "def build():"
    yield INDENT + "torch.manual_seed(0)"
    yield INDENT + f"return {model}"

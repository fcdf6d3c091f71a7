"""The renderer: a program as Python source that a person would write.

What runs is what is shown: the module under test is built by executing this very text, and the stand-alone
script of a bug report is the same text with a main behind it. The source imports torch, torchao and
executorch, and nothing of this project. Only names that ``validate`` has admitted and literals reach it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from generators.program import Attribute, Input, Layer, Method, Parametrization, Program, Step, Tensor
from generators.quantization import QUANTIZATIONS
from generators.vocabulary import LAYERS, OPS, PARAMETRIZATIONS, layer_bias, layer_weight

INDENT = "    "


def render(program: Program) -> str:
    """Source with ``Model``, ``INPUTS`` (method -> inputs), ``CALLS``, ``DYNAMIC`` and ``build()``.

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
    """The literal of an inline constant: distinct values, of floats some negative and none zero."""
    places = range(math.prod(tensor.shape))
    values: list[float] = [(7 * i % 11 - 4.5) / 4 for i in places]
    if tensor.high is not None:
        values = [(5 * i + tensor.high - 1) % tensor.high for i in places]
    elif tensor.dtype == "bool":
        values = [i % 3 != 1 for i in places]
    return repr(values if tensor.shape else values[0])


MIXED = """def mixed(*shape):  # zeros, large and tiny values
    values = torch.randn(shape).flatten()
    values[::5], values[1::7], values[2::7] = 0, values[1::7] * 16, values[2::7] / 1024
    return values.reshape(shape)"""


def _imports(program: Program) -> Iterator[str]:
    ops = [OPS[step.op] for _, step in program.walk()]
    kinds = [PARAMETRIZATIONS[p.kind] for layer in program.layers for p in layer.parametrizations]
    text = "\n".join([op.code + op.source for op in ops] + [kind.code + kind.source for kind in kinds])
    yield "import torch"
    if "F." in text:
        yield "import torch.nn.functional as F"
    yield "from torch import nn"
    used = [name for name in ("parametrizations", "parametrize", "prune") if name + "." in text]
    if used:
        yield f"from torch.nn.utils import {', '.join(used)}"
    yield from dict.fromkeys(op.imports for op in ops if op.imports)
    if program.quantization:
        yield QUANTIZATIONS[program.quantization].imports


def _classes(program: Program) -> list[str]:
    kinds = [PARAMETRIZATIONS[p.kind].source for layer in program.layers for p in layer.parametrizations]
    helpers = [OPS[step.op].source for _, step in program.walk()]
    helpers += [MIXED for tensor in program.tensors if tensor.values == "mixed"]
    return [source for source in dict.fromkeys([*kinds, *helpers]) if source]


def _model(program: Program) -> Iterator[str]:
    yield "class Model(nn.Module):"
    init = list(_init(program))
    if init:
        yield INDENT + "def __init__(self):"
        yield INDENT * 2 + "super().__init__()"
        yield from (INDENT * 2 + line for line in init)
        yield ""
    for position, method in enumerate((*program.branches, *program.methods)):
        if position:
            yield ""
        names = ", ".join(["self", *(item.name for item in method.inputs)])
        yield INDENT + f"def {method.name}({names}):"
        yield from (INDENT * 2 + line for line in _method(program, method))


def _init(program: Program) -> Iterator[str]:
    for tensor in program.tensors:
        grad = "" if tensor.requires_grad else ", requires_grad=False"
        persistent = "" if tensor.persistent else ", persistent=False"
        if tensor.tied is not None:
            yield f"self.{tensor.name} = self.{tensor.tied}"
        elif tensor.role == "parameter":
            yield f"self.{tensor.name} = nn.Parameter({_values(tensor)}{grad})"
        elif tensor.role == "buffer":
            yield f"self.register_buffer('{tensor.name}', {_values(tensor)}{persistent})"
    if any(layer.nested for layer in program.layers):
        yield "self.inner = nn.Module()"
    shared: set[str] = set()
    for layer in program.layers:
        attrs = {name: literal(value) for name, value in layer.attrs.items()}
        yield f"self.{layer.path} = " + LAYERS[layer.kind].code.format(**attrs)
        for item in layer.parametrizations:
            if item.shared and item.kind not in shared:
                shared.add(item.kind)
                yield f"self.shared_{item.kind} = {PARAMETRIZATIONS[item.kind].call}"
            yield _parametrization(layer, item)


def _parametrization(layer: Layer, item: Parametrization) -> str:
    kind = PARAMETRIZATIONS[item.kind]
    owned = layer_weight(layer) if item.target == "weight" else layer_bias(layer)
    assert owned is not None
    call = f"self.shared_{item.kind}" if item.shared else kind.call.format(shape=literal(owned.shape))
    return kind.code.format(layer=layer.path, target=item.target, call=call)


def _values(tensor: Tensor) -> str:
    """The expression that makes the values of an owned tensor, in its layout."""
    shape = tensor.shape
    if tensor.layout in ("sliced", "strided"):
        shape = ((shape[0] + 2) if tensor.layout == "sliced" else 2 * shape[0], *shape[1:])
    elif tensor.layout == "transposed":
        shape = shape[::-1]
    elif tensor.layout == "expanded":
        shape = (1, *shape[1:])
    return (
        _made(tensor, _sizes(shape))
        + {
            "plain": "",
            "sliced": "[2:]",
            "strided": "[::2]",
            "transposed": ".t()",
            "expanded": f".expand({_sizes(tensor.shape)})",
            "channels_last": ".to(memory_format=torch.channels_last)",
        }[tensor.layout]
    )


def _made(tensor: Tensor, sizes: str) -> str:
    shape = f"({sizes}{',' if ',' not in sizes and sizes != '()' else ''})"
    if tensor.dtype == "int64":
        return f"torch.randint({tensor.high}, {shape})"
    if tensor.dtype == "int8":
        return f"torch.randint(-{tensor.high}, {tensor.high}, {shape}, dtype=torch.int8)"
    if tensor.dtype == "bool":
        return f"torch.rand({sizes}) > 0.5"
    made = {"positive": f"torch.rand({sizes}) + 0.5", "mixed": f"mixed({sizes if sizes != '()' else ''})"}
    value = made.get(tensor.values, f"torch.{tensor.values}({sizes})")
    if tensor.layout != "plain" and tensor.values == "positive":
        value = f"({value})"
    return value if tensor.dtype == "float32" else f"({value}).half()"


def _method(program: Program, method: Method) -> Iterator[str]:
    names = {item.name: item.name for item in method.inputs}
    read = {arg for step in method.steps for arg in step.args} | set(method.outputs)
    for tensor in program.tensors:
        if tensor.role != "constant":
            names[tensor.name] = f"self.{tensor.name}"
        elif tensor.name in read:
            names[tensor.name] = tensor.name
            yield f"{tensor.name} = torch.tensor({constant_values(tensor)})"
    layers = {layer.name: layer.path for layer in program.layers}
    for step in method.steps:
        yield statement(step, [names[arg] for arg in step.args], layers)
        names |= {out: out for out in step.outs}
    outputs = ", ".join(names[name] for name in method.outputs)
    yield f"return {outputs}"


def statement(step: Step, args: list[str], layers: Mapping[str, str]) -> str:
    """One step as a statement over arguments that are already source; ``layers``: name -> path."""
    op = OPS[step.op]
    attrs = {name: literal(step.attrs[name]) for name in op.attrs}
    attrs |= {name: str(step.attrs[name]) for name, attr in op.attrs.items() if attr.kind == "branch"}
    attrs |= {name: layers[str(step.attrs[name])] for name, attr in op.attrs.items() if attr.kind == "layer"}
    code = op.code.format(*args, args=", ".join(args), rest=", ".join(args[1:]), **attrs)
    return f"{', '.join(step.outs)} = {code}" if step.outs else code


def _input(item: Input) -> str:
    sizes = [name or str(size) for name, size in zip(item.dims, item.shape, strict=True)] if item.dims else []
    if item.high is None:
        return f"torch.randn({', '.join(sizes) or _sizes(item.shape)})"
    shape = f"({', '.join(sizes)},)" if sizes else literal(item.shape)
    return f"torch.randint({item.high}, {shape})"


def _sized(method: Method) -> dict[str, int]:
    """The dynamic dimensions of a method's inputs, with the sizes that it is exported at."""
    return {
        name: size
        for item in method.inputs
        for name, size in zip(item.dims, item.shape, strict=False)
        if name
    }


def _calls(program: Program) -> Iterator[str]:
    lambdas = []
    for method in program.methods:
        sizes = ", ".join(f"{name}={size}" for name, size in _sized(method).items())
        items = ", ".join(_input(item) for item in method.inputs)
        comma = "," if len(method.inputs) == 1 else ""
        lambdas.append(f"'{method.name}': lambda{' ' if sizes else ''}{sizes}: ({items}{comma})")
    yield from _table("INPUTS", lambdas)
    if program.dims:
        yield from _dynamic(program)
        calls = ", ".join(f"('{call.method}', {call.seed}, {call.sizes})" for call in program.calls)
        yield f"CALLS = [{calls}]  # method, seed of its inputs, sizes"
    else:
        calls = ", ".join(f"('{call.method}', {call.seed})" for call in program.calls)
        yield f"CALLS = [{calls}]  # method, seed of its inputs"


def _dynamic(program: Program) -> Iterator[str]:
    for dim in program.dims:
        yield f"{dim.name} = torch.export.Dim('{dim.name}', min={dim.low}, max={dim.high})"
    shapes = []
    for method in program.methods:
        items = [
            "{" + ", ".join(f"{i}: {name}" for i, name in enumerate(item.dims) if name) + "}"
            for item in method.inputs
        ]
        shapes.append(f"'{method.name}': ({', '.join(items)}{',' if len(items) == 1 else ''})")
    yield from _table("DYNAMIC", shapes)


def _table(name: str, items: list[str]) -> Iterator[str]:
    if len(items) == 1:
        yield f"{name} = {{{items[0]}}}"
    else:
        yield f"{name} = {{"
        yield from (f"{INDENT}{item}," for item in items)
        yield "}"


def export_statements(program: Program) -> list[str]:
    """Statements that export ``model`` into ``programs``: method -> exported program."""
    options = ", strict=True" if program.strict else ""
    single = len(program.methods) == 1 and program.methods[0].name == "forward"
    name, inputs = ("'forward'", "INPUTS['forward']") if single else ("name", "inputs")
    dynamic = f", dynamic_shapes=DYNAMIC[{name}]" if program.dims else ""
    call = f"torch.export.export(model, {inputs}(){dynamic}{options})"
    if program.joint:
        call = f"_export_forward_backward({call})"
    mode = "" if program.grad or program.joint else INDENT
    lines = [] if single else ["programs = {}", "for name, inputs in INPUTS.items():"]
    indent = "" if single else INDENT
    if not single:
        lines.append(f"{indent}model.forward = getattr(model, name)")
    if mode:
        lines.append(f"{indent}with torch.no_grad():")
    lines.append(
        indent + mode + (f"programs = {{'forward': {call}}}" if single else f"programs[name] = {call}")
    )
    tags = {f"{tensor.role[0]}_{tensor.name}": tensor.tag for tensor in program.tensors if tensor.tag}
    if tags:
        lines += [
            f"tags = {tags}",
            "for node in (n for p in programs.values() for n in p.graph.nodes if n.name in tags):",
            f"{INDENT}node.meta['custom'] = {{'delegate_constant_tag': tags[node.name]}}",
        ]
    if program.joint:
        lines.insert(0, "from torch.export.experimental import _export_forward_backward")
    return lines


def _build(program: Program) -> Iterator[str]:
    model = "Model()" if program.train else "Model().eval()"
    if program.quantization:
        yield "def quantize(model):"
        yield from (INDENT + line for line in QUANTIZATIONS[program.quantization].code.splitlines())
        yield INDENT + "return model"
        yield ""
        model = f"quantize({model})"
    yield "def build():"
    yield INDENT + "torch.manual_seed(0)"
    kinds = [PARAMETRIZATIONS[p.kind] for layer in program.layers for p in layer.parametrizations]
    if any(kind.alone for kind in kinds):
        # A hook computes the tensor when it is registered; with a gradient it could not be copied.
        yield INDENT + "with torch.no_grad():"
        yield INDENT * 2 + f"return {model}"
    else:
        yield INDENT + f"return {model}"

"""What is read off the graph of an exported program: its ops, its writes, its structure."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind

QUANTIZATION_NAMESPACES = ("quantized_decomposed", "torchao")
DELEGATE = "executorch_call_delegate"
UNCOUNTED = ("getitem", DELEGATE)
SIZES = (int, torch.SymInt, torch.SymBool)


def op_name(target: Any) -> str:
    """``aten.linear.default`` for an op of the ATen or edge dialect, else the function's own name."""
    if not isinstance(target, torch._ops.OpOverload):
        target = getattr(target, "_op", target)  # an op of the edge dialect wraps one of ATen's
    return str(target) if hasattr(target, "_schema") else getattr(target, "__name__", str(target))


def ops(program: ExportedProgram) -> Counter[str]:
    """How often each op is called, without what only takes results apart, works on sizes, or writes back.

    The copies that write an input back tell only how often torch functionalized the program: every time
    adds one, so that a fold that needs the program functionalized has one more per written input.
    """
    written = set(program.graph_signature.user_inputs_to_mutate.values())
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    nodes = (node for node in nodes if not _writes_back(node, written))
    # Sizes are worked out by the runtime in any case; where the partitioner cuts does not matter for them.
    names = (op_name(node.target) for node in nodes if not isinstance(node.meta.get("val"), SIZES))
    return Counter(name for name in names if name not in UNCOUNTED)


def _writes_back(node: torch.fx.Node, written: set[str]) -> bool:
    return op_name(node.target) == "aten.copy.default" and getattr(node.args[0], "name", None) in written


def delegates(program: ExportedProgram) -> int:
    """How many calls of a delegate a lowered program makes."""
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    return sum(op_name(node.target) == DELEGATE for node in nodes)


def quantization_ops(counted: Counter[str]) -> Counter[str]:
    """The part of a count that quantizes or dequantizes."""
    return Counter({name: n for name, n in counted.items() if name.split(".")[0] in QUANTIZATION_NAMESPACES})


def mutated(program: ExportedProgram) -> frozenset[str]:
    """Names of the buffers and inputs that the signature says are written."""
    kinds = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
    specs = program.graph_signature.output_specs
    return frozenset(str(spec.target) for spec in specs if spec.kind in kinds)


def returned_inputs(program: ExportedProgram) -> int:
    """How many inputs the program writes: the runtime returns their new values before its outputs."""
    specs = program.graph_signature.output_specs
    return sum(spec.kind is OutputKind.USER_INPUT_MUTATION for spec in specs)


def structure(program: ExportedProgram) -> str:
    """The graph up to names and to the numbers in its stored tensors.

    Two functionalized programs of equal structure are partitioned alike: the partitioner looks at ops,
    shapes, dtypes, literals, and at whether a tensor is stored.
    """
    static = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    written = mutated(program)
    kinds = {
        spec.arg.name: ("stored" if spec.kind in static and spec.target not in written else str(spec.kind))
        for spec in program.graph_signature.input_specs
        if hasattr(spec.arg, "name")
    }
    # Stored tensors are numbered by their first use, so that their order in the signature does not matter.
    numbers: dict[torch.fx.Node, str] = {}

    def show(value: Any) -> str:
        if isinstance(value, torch.fx.Node):
            if value not in numbers:
                kind = kinds.get(value.name, "value")
                numbers[value] = f"%{len(numbers)}:{kind}:{_type(value)}"
            return numbers[value]
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(show(item) for item in value) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}={show(item)}" for key, item in sorted(value.items())) + "}"
        return repr(value)

    lines = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if kinds.get(node.name) != "stored":
                lines.append(show(node))
        elif node.op != "get_attr":
            args = f"({show(node.args)}, {show(dict(node.kwargs))})"
            lines.append(f"{show(node)} = {op_name(node.target)}{args}")
    outputs = [str(spec.kind) for spec in program.graph_signature.output_specs]
    return "\n".join([*lines, *outputs])


def _type(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{list(value.shape)}"
    return "" if value is None else type(value).__name__


def reductions(program: ExportedProgram) -> int:
    """Sum of the lengths of the program's reductions, and one for every other op."""
    nodes = (node for node in program.graph.nodes if node.op == "call_function")
    return sum(_length(node) for node in nodes)


def _length(node: torch.fx.Node) -> int:
    """How many products or terms one element of the result is summed from (aten schemas)."""
    shapes = [_shape(item) for item in node.args if isinstance(item, torch.fx.Node)]
    name = op_name(node.target).split(".")[1] if "." in op_name(node.target) else ""
    if name == "linear" or (name.startswith("conv") and "transpose" not in name):
        return max(1, math.prod(shapes[1][1:]))
    if name.startswith("conv_transpose"):
        return max(1, math.prod(shapes[1]) // max(1, shapes[1][1]))
    if name in ("mm", "matmul", "bmm"):
        return max(1, shapes[0][-1])
    if name == "addmm":
        return max(1, shapes[1][-1])
    read, made = max((math.prod(shape) for shape in shapes), default=1), math.prod(_shape(node))
    return max(1, read // max(1, made))


def _shape(node: torch.fx.Node) -> tuple[int, ...]:
    value = node.meta.get("val")
    return tuple(int(size) for size in value.shape) if isinstance(value, torch.Tensor) else ()

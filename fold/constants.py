"""Which values of a program are constant: the same in every call, and so may be computed now."""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputKind
from torch.fx import Node
from torch.fx.node import map_arg

aten = torch.ops.aten


@dataclass(frozen=True)
class Source:
    """A tensor that the program stores and never writes: a parameter, a buffer or a constant."""

    node: Node
    spec: InputSpec
    tensor: torch.Tensor


def storage(tensor: torch.Tensor) -> int:
    """Return what tensors have in common if they share their storage."""
    return tensor.untyped_storage().data_ptr()


class ConstantAnalysis:
    """The constant nodes of one functionalized program.

    Attributes, in the order in which ``analyse`` sets them:
        program: the caller's program, never modified.
        functional: its functionalized copy; all nodes below are of its graph.
        tensors: placeholder -> the tensor it stands for, for all that the program stores.
        holders: storage -> the placeholders that keep it: several, if weights are tied.
        sources: placeholder -> source, for those of them that are constants.
        constants: constant node -> the first node of the graph that computes the same.
    """

    fills = frozenset(
        {
            *(aten.full, aten.new_full, aten.full_like),
            *(aten.ones, aten.new_ones, aten.ones_like),
            *(aten.zeros, aten.new_zeros, aten.zeros_like, aten.zero),
            *(aten.empty, aten.new_empty, aten.empty_like),
            *(aten.empty_strided, aten.new_empty_strided, aten.empty_permuted),
        }
    )
    """Ops that take no more than shape and dtype from the tensor they are given, if any."""

    quantization = frozenset({"quantized_decomposed", "torchao"})
    """Namespaces of ops that tell the delegate how a weight is quantized."""

    def __init__(self, program: ExportedProgram) -> None:
        self.program = program

    def analyse(self) -> None:
        """Functionalize the program and find its constants."""
        self.functional = self.functionalize()
        self.tensors = self.find_tensors()
        self.holders = self.find_holders()
        self.sources = self.find_sources()
        self.constants: dict[Node, Node] = {}
        self.find_constants()

    def functionalize(self) -> ExportedProgram:
        """Return a copy whose signature lists every write; its graph is the fold's to edit."""
        return self.program.run_decompositions({})

    def find_tensors(self) -> dict[Node, torch.Tensor]:
        """Return the tensor behind each placeholder that is no user input."""
        stored = {**self.functional.constants, **self.functional.state_dict}
        return {
            node: stored[spec.target]
            for node, spec in self.inputs()
            if isinstance(stored.get(spec.target), torch.Tensor)
        }

    def inputs(self) -> list[tuple[Node, InputSpec]]:
        """Return the placeholders of the functionalized program with their specs."""
        specs = self.functional.graph_signature.input_specs
        return list(zip(self.functional.graph.find_nodes(op="placeholder"), specs, strict=True))

    def find_holders(self) -> dict[int, set[Node]]:
        """Return the placeholders for which the lowered program keeps each storage.

        Lowering removes a parameter without users; export gives one to the first of tied names.
        """
        holders: dict[int, set[Node]] = {}
        for node, spec in self.inputs():
            if node in self.tensors and (node.users or spec.kind is not InputKind.PARAMETER):
                holders.setdefault(storage(self.tensors[node]), set()).add(node)
        return holders

    def find_sources(self) -> dict[Node, Source]:
        """Return the stored tensors that are constants of the program."""
        written = self.written()
        return {
            node: Source(node, spec, self.tensors[node])
            for node, spec in self.inputs()
            if node in self.tensors and spec.target not in written
        }

    def written(self) -> set[str | None]:
        """Return the names of the stored tensors that a call of the program writes."""
        mutations = (OutputKind.BUFFER_MUTATION, OutputKind.PARAMETER_MUTATION)
        specs = self.functional.graph_signature.output_specs
        return {spec.target for spec in specs if spec.kind in mutations}

    def find_constants(self) -> None:
        """Fill ``constants``, in graph order so that inputs are judged before what reads them."""
        first: dict[Hashable, Node] = {}
        for node in self.functional.graph.nodes:
            if self.is_constant(node):
                self.constants[node] = first.setdefault(self.expression(node), node)

    def is_constant(self, node: Node) -> bool:
        """Whether the value of ``node`` is the same in every call and may be computed now."""
        if node.op == "placeholder":
            return node in self.sources
        return (
            node.op == "call_function"
            and (isinstance(node.target, torch._ops.OpOverload) or node.target is operator.getitem)
            and all(value in self.constants for value in node.all_input_nodes)
            and not self.is_impure(node)
            and not self.is_quantization(node)
            and self.is_static(node)
        )

    def is_impure(self, node: Node) -> bool:
        """Whether ``node`` draws random numbers, writes, or has another effect."""
        return node.is_impure()

    def is_quantization(self, node: Node) -> bool:
        """Whether the delegate reads ``node`` as part of how a weight is quantized."""
        return getattr(node.target, "namespace", None) in self.quantization

    def is_static(self, node: Node) -> bool:
        """Whether ``node`` is a tensor, or several, of known shape, or the number of one; not nothing."""
        if node.target in (aten.item.default, aten._local_scalar_dense.default):
            return True  # A shape made of the number is not known, and no longer static.
        value = node.meta.get("val")
        values = value if isinstance(value, (tuple, list)) else (value,)
        return all(
            isinstance(item, torch.Tensor) and all(isinstance(size, int) for size in item.shape)
            for item in values
        )

    def is_fill(self, node: Node) -> bool:
        """Whether ``node`` depends on no element of its inputs: cheap to redo, waste to store."""
        return getattr(node.target, "overloadpacket", None) in self.fills or node.target is aten.fill.Scalar

    def expression(self, node: Node) -> Hashable:
        """Return a key that nodes share if and only if they compute the same in the same way.

        ``repr`` tells apart what ``==`` does not: 1, 1.0 and True, or 0.0 and -0.0.
        """
        if node.op == "placeholder":
            tensor = self.tensors[node]
            layout = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            return layout if tensor.data_ptr() else node
        return node.target, repr(map_arg((node.args, node.kwargs), self.constants.__getitem__))

    def leaves(self, node: Node) -> list[Source]:
        """Return the sources on which the value of ``node`` depends, in graph order."""
        reached = self.cone([node], through_fills=False)
        return [source for source in self.sources.values() if source.node in reached]

    def cone(self, nodes: Iterable[Node], through_fills: bool = True) -> set[Node]:
        """Return ``nodes`` and all that they are computed from. A loop: chains can be long."""
        reached: set[Node] = set()
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node not in reached:
                reached.add(node)
                if through_fills or not self.is_fill(node):
                    waiting += node.all_input_nodes
        return reached

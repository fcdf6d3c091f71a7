"""The fold: which constants of a program are weights, what they are worth, and the rewrite.

Every decision is one method of ``WeightFold`` or of the analysis below it, so that another opinion
on one of them is a subclass of a few lines.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from fold.constants import ConstantAnalysis, Source, storage
from fold.gemm import stored_operands

aten = torch.ops.aten


@dataclass
class ComputedWeight:
    """A constant expression, ``node``, and all GEMM arguments (GEMM, index) that compute it."""

    node: Node
    uses: list[tuple[Node, int]] = field(default_factory=list)


def fold_weights(exported_program: ExportedProgram) -> ExportedProgram:
    """Return ``exported_program`` with its computed weights stored; see ``WeightFold.fold``."""
    return WeightFold(exported_program).fold()


class WeightFold(ConstantAnalysis):
    """One fold of one program: ``WeightFold(program).fold()``."""

    checks = frozenset({aten._assert_tensor_metadata})
    """Ops that check their argument and return nothing: settled once the argument is constant."""

    def fold(self) -> ExportedProgram:
        """Return a functionalized program with its computed weights stored.

        A program in which there is nothing to fold comes back itself. A weight that cannot be
        evaluated stays computed, with a warning that names it.
        """
        if self.is_joint() or not self.has_candidates():
            return self.program
        self.analyse()
        chosen = self.afford(self.select())
        values = self.evaluate(chosen)
        if len(values) < len(chosen):
            # What failed keeps its sources alive: the rest must pay without it.
            chosen = self.afford([weight for weight in chosen if weight.node in values])
        return self.rewrite(chosen, values) if chosen else self.program

    # Whether to look at all.

    def is_joint(self) -> bool:
        """Whether this is a forward-backward graph, whose parameters are trained: inputs."""
        return self.program.graph_signature.backward_signature is not None

    def has_candidates(self) -> bool:
        """Whether a GEMM, also in a graph that this one calls, has a computed weight or bias.

        Functionalizing retraces the program, which is too much to ask of one without any.
        """
        return any(
            value.op == "call_function"
            for module in self.program.graph_module.modules()
            if isinstance(module, GraphModule)
            for node in module.graph.nodes
            for _, value in stored_operands(node)
        )

    # Which constants to fold.

    def select(self) -> list[ComputedWeight]:
        """Return the weights and biases that the program computes from its sources.

        Those of a GEMM that is itself a step of a computed weight go with it.
        """
        weights: dict[Node, ComputedWeight] = {}
        steps: set[Node] = set()
        # What comes later first, so that the steps of its weights are known.
        for gemm in reversed(self.functional.graph.nodes):
            if gemm in steps:
                continue
            for index, value in stored_operands(gemm):
                node = self.constants.get(value)
                if node is not None and value.op != "placeholder" and self.leaves(value):
                    weights.setdefault(node, ComputedWeight(node)).uses.append((gemm, index))
                    steps |= self.cone([value])
        return list(weights.values())[::-1]

    def afford(self, weights: list[ComputedWeight]) -> list[ComputedWeight]:
        """Return the weights whose folding does not make the program larger.

        Weights that share a source are judged together, as only together they may free it; if
        they do not pay together, those that pay on their own are kept.
        """
        chosen: list[ComputedWeight] = []
        for group in self.groups(weights):
            chosen += group if self.pays(group) else [w for w in group if self.pays([w])]
        return chosen

    def groups(self, weights: list[ComputedWeight]) -> list[list[ComputedWeight]]:
        """Return ``weights``, those together that share a source, directly or through others."""
        groups: list[tuple[set[Node], list[ComputedWeight]]] = []
        for weight in weights:
            shared = {node for node in self.expanded([weight]) if node.op == "placeholder"}
            members, apart = [weight], []
            for sources, others in groups:
                if sources.isdisjoint(shared):
                    apart.append((sources, others))
                else:
                    shared, members = shared | sources, others + members
            groups = [*apart, (shared, members)]
        return [members for _, members in groups]

    def expanded(self, weights: list[ComputedWeight]) -> set[Node]:
        """Return all nodes that compute ``weights``, at every one of their uses."""
        uses = (use for weight in weights for use in weight.uses)
        return self.cone(cast(Node, gemm.args[index]) for gemm, index in uses)

    def pays(self, weights: list[ComputedWeight]) -> bool:
        """Whether storing ``weights`` frees at least as many bytes as it takes."""
        dead = set(self.dead(weights))
        freed = {
            storage(source.tensor): source.tensor.nbytes
            for source in self.sources.values()
            if source.node in dead and self.holders[storage(source.tensor)] <= dead
        }
        return sum(weight.node.meta["val"].nbytes for weight in weights) <= sum(freed.values())

    def dead(self, weights: list[ComputedWeight]) -> list[Node]:
        """Return the nodes that nothing needs once ``weights`` are stored, users first."""
        folded = {use for weight in weights for use in weight.uses}
        pinned = self.pinned()
        dead: dict[Node, None] = {}

        def is_served(user: Node, node: Node) -> bool:
            places = [index for index, value in enumerate(user.args) if value is node]
            return (
                user in dead
                or self.is_check(user)
                or (bool(places) and all((user, index) in folded for index in places))
            )

        for node in sorted(self.expanded(weights), reverse=True):
            if node.name not in pinned and all(is_served(user, node) for user in node.users):
                dead[node] = None
        return list(dead)

    def is_check(self, node: Node) -> bool:
        """Whether ``node`` only checks its argument."""
        return getattr(node.target, "overloadpacket", None) in self.checks

    def pinned(self) -> set[str]:
        """Return the names of nodes that a preserved submodule call takes or returns."""
        signatures = [entry.signature for entry in self.functional.module_call_graph]
        return {
            argument.name
            for signature in signatures
            if signature is not None
            for argument in (*signature.inputs, *signature.outputs)
        }

    # What they are worth.

    def evaluate(self, weights: list[ComputedWeight]) -> dict[Node, torch.Tensor]:
        """Return the value of each weight, less those that cannot be evaluated.

        Each node is evaluated once and its value dropped after its last use.
        """
        order = sorted(self.cone(weight.node for weight in weights))
        uses = Counter(value for node in order for value in node.all_input_nodes)
        roots = {weight.node for weight in weights}
        values: dict[Node, Any] = {}
        stored: dict[Node, torch.Tensor] = {}
        for node in order:
            if all(value in values for value in node.all_input_nodes):
                try:
                    values[node] = self.value(node, values)
                    if node in roots:
                        stored[node] = self.own(values[node])
                except Exception as error:
                    self.warn(node, weights, error)
            uses.subtract(node.all_input_nodes)
            for value in node.all_input_nodes:
                if not uses[value]:
                    values.pop(value, None)
        return stored

    def value(self, node: Node, values: dict[Node, Any]) -> Any:
        """Return the value of ``node``, given those of its inputs."""
        if node.op == "placeholder":
            return self.sources[node].tensor
        args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
        with torch.no_grad():
            return cast(Callable[..., Any], node.target)(*args, **kwargs)

    def own(self, value: torch.Tensor) -> torch.Tensor:
        """Return ``value`` as a contiguous leaf in a storage of its own.

        A view would drag its parent's storage along, and the delegate serializes storages.
        """
        return value.detach().clone(memory_format=torch.contiguous_format)

    def warn(self, node: Node, weights: list[ComputedWeight], error: Exception) -> None:
        """Warn that ``weights`` that need ``node`` stay computed."""
        names = [
            f"{gemm.name} (from {', '.join(str(leaf.spec.target) for leaf in self.leaves(w.node))})"
            for w in weights
            if node in self.cone([w.node])
            for gemm, _ in w.uses
        ]
        message = f"left computed, as {node.name} cannot be evaluated: {'; '.join(names)}: {error}"
        warnings.warn(message, stacklevel=2)

    # The rewrite.

    def rewrite(self, weights: list[ComputedWeight], values: dict[Node, torch.Tensor]) -> ExportedProgram:
        """Return the functionalized program with ``weights`` stored and what computed them gone."""
        program = self.functional
        self.specs = dict(self.inputs())
        # run_decompositions shares these with the caller's program.
        self.state_dict, self.stored_constants = dict(program.state_dict), dict(program.constants)
        dead = self.dead(weights)
        for weight in weights:
            self.replace(weight, self.register(weight, values[weight.node]))
        self.erase(dead)
        placeholders = program.graph.find_nodes(op="placeholder")
        return program._update(
            program.graph_module,
            ExportGraphSignature(
                [self.specs[node] for node in placeholders], program.graph_signature.output_specs
            ),
            state_dict=self.state_dict,
            constants=self.stored_constants,
        )

    def principal(self, weight: ComputedWeight) -> Source:
        """Return the source that ``weight`` takes its name, kind and tags from: the largest.

        Among equals that is the first, a parameter before the buffer that masks it.
        """
        return max(self.leaves(weight.node), key=lambda source: source.tensor.numel())

    def register(self, weight: ComputedWeight, value: torch.Tensor) -> Node:
        """Add ``value`` to the program, as what its principal source is, and return its node.

        The placeholder stands beside that of the source: among the lifted inputs, in their order.
        """
        source = self.principal(weight)
        spec = source.spec
        target, name = self.unused(f"{spec.target}_folded", f"{source.node.name}_folded")
        with self.functional.graph.inserting_before(source.node):
            node = self.functional.graph.placeholder(name)
        # Export names placeholders behind the graph's back, which then numbers without need.
        node.name = node.target = name
        if spec.kind is InputKind.PARAMETER:
            trains = source.tensor.requires_grad and value.is_floating_point()
            value = torch.nn.Parameter(value, requires_grad=trains)
        # XNNPACK puts the weight of a conv1d into the state dict, where no other buffer may be.
        persistent = True if spec.kind is InputKind.BUFFER else spec.persistent
        in_state = spec.kind is not InputKind.CONSTANT_TENSOR
        (self.state_dict if in_state else self.stored_constants)[target] = value
        self.specs[node] = InputSpec(spec.kind, TensorArgument(node.name), target, persistent)
        node.meta = self.meta(source, value)
        return node

    def unused(self, target: str, name: str) -> tuple[str, str]:
        """Return ``target`` and ``name``, numbered if the program has a tensor or node of them."""
        stored = self.state_dict.keys() | self.stored_constants.keys()
        names = {node.name for node in self.functional.graph.nodes}
        suffixes = itertools.chain([""], (f"_{number}" for number in itertools.count(1)))
        suffix = next(s for s in suffixes if target + s not in stored and name + s not in names)
        return target + suffix, name + suffix

    def meta(self, source: Source, value: torch.Tensor) -> dict[str, Any]:
        """Return the metadata of the source, its external-data tag among it, for ``value``."""
        fake_mode = source.node.meta["val"].fake_mode
        meta = {**source.node.meta, "val": fake_mode.from_tensor(value, static_shapes=True)}
        # These describe the source's own tensor; the next retrace writes them anew.
        return {key: item for key, item in meta.items() if key not in ("tensor_meta", "desc")}

    def replace(self, weight: ComputedWeight, placeholder: Node) -> None:
        """Let the GEMMs of ``weight`` read ``placeholder``; other users keep the expression."""
        for gemm, index in weight.uses:
            gemm.update_arg(index, placeholder)

    def erase(self, dead: list[Node]) -> None:
        """Erase the nodes of ``dead``, users first, with the tensors that only they stand for."""
        graph = self.functional.graph
        for node in dead:
            for check in list(node.users):
                graph.erase_node(check)
            if node.op == "placeholder":
                target = self.specs.pop(node).target
                self.state_dict.pop(target, None)
                self.stored_constants.pop(target, None)
            graph.erase_node(node)

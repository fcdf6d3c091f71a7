"""Lowering to a ``.pte`` with the XNNPACK delegate, and running it on the ExecuTorch runtime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - adds the quantized kernels to the runtime
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.extension.pybindings import portable_lib
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from oracles import graph
from oracles.stages import stage

Report = Callable[[str], None]
Outputs = list[list[Any]]


@dataclass(frozen=True)
class Lowered:
    """A lowered program: delegates and ops left outside over all methods, what each method writes, how many
    written inputs it returns, the ``.pte``, and the external file of tagged weights where there is one."""

    delegates: int
    outside: Counter[str]
    mutated: Mapping[str, frozenset[str]]
    returned: Mapping[str, int]
    pte: bytes
    data: bytes | None


@dataclass(frozen=True)
class Partitions:
    """How a program is partitioned: the number of delegates and the ops that are left outside."""

    delegates: int
    outside: Counter[str]

    @property
    def goal(self) -> str:
        """A Python literal: the number of delegates and the sorted ops outside."""
        return repr((self.delegates, sorted(self.outside.elements())))

    def __str__(self) -> str:
        names = ", ".join(f"{name} x{n}" if n > 1 else name for name, n in sorted(self.outside.items()))
        return f"{self.delegates} delegate(s), outside: {names or 'none'}"


def lower(programs: Mapping[str, ExportedProgram], partitioner: Any, label: str, report: Report) -> Lowered:
    """Lowers programs that are folded already: ``partitioner`` is used for its partitions alone.

    Raises:
        StageFailure: stage ``lower (label)`` or ``serialize (label)``.
    """
    # The fold has run; asking for it again would judge a second fold.
    partitioner.transform_for_pre_decomposition = lambda program: program
    with stage(f"lower ({label})", report):
        manager = to_edge_transform_and_lower(
            dict(programs), partitioner={name: [partitioner] for name in programs}
        )
    lowered = {name: manager.exported_program(name) for name in programs}
    outside: Counter[str] = Counter()
    for program in lowered.values():
        outside += graph.ops(program)
    delegates = sum(graph.delegates(program) for program in lowered.values())
    mutated = {name: graph.mutated(program) for name, program in lowered.items()}
    with stage(f"serialize ({label})", report):
        # Without this pass the initial value of a mutated buffer is not in the file at all.
        config = ExecutorchBackendConfig(passes=[InitializedMutableBufferPass([""])])
        serialized = manager.to_executorch(config)
        pte = serialized.buffer
        data = next((bytes(cord) for cord in serialized._tensor_data.values()), None)
    returned = {name: graph.returned_inputs(program) for name, program in lowered.items()}
    return Lowered(delegates, outside, mutated, returned, pte, data)


def run(lowered: Lowered, calls: Sequence[tuple[str, Any]], label: str, report: Report) -> Outputs:
    """Outputs of each call, in order, on one loaded instance, so that state persists.

    ``calls`` holds methods with their inputs, any tree of tensors and numbers in the order of the signature.

    Raises:
        StageFailure: stage ``load (label)`` or ``run (label)``, with what the runtime logged.
    """
    with stage(f"load ({label})", report):
        # The module points into these bytes, which the caller keeps alive.
        module = portable_lib._load_for_executorch_from_buffer(lowered.pte, lowered.data)
    outputs: Outputs = []
    with stage(f"run ({label})", report):
        for method, inputs in calls:
            flat = [clone(item) for item in pytree.tree_leaves(inputs)]
            results = module.run_method(method, tuple(flat))
            outputs.append([clone(item) for item in results])
    return outputs


def clone(value: Any) -> Any:
    """A copy of a tensor that shares nothing with it; anything else as it is."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value

"""Oracle ``quantization``: a fold that computes through a Q/DQ node hands the delegate a float weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from oracles.oracle import Violation

if TYPE_CHECKING:
    from oracles.evidence import Evidence


class Quantization:
    """Counts quantize and dequantize ops before and after the fold, both functionalized."""

    name = "quantization"
    rule = "The quantized_decomposed and torchao ops are the same before and after the fold."
    goals = ()
    script = """def qdq(program):
    nodes = program.run_decompositions({}).graph.nodes
    names = (str(n.target) for n in nodes if n.op == "call_function")
    return sorted(name for name in names if name.startswith(("quantized_decomposed", "torchao")))

before = [qdq(program) for program in programs.values()]
folded = [Partitioner().transform_for_pre_decomposition(program) for program in programs.values()]
after = [qdq(program) for program in folded]
print("before:", before, "after:", after)
raise SystemExit(before != after)"""

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        facts = evidence.original.facts
        if facts is not None and not facts.quantized:
            return
        before, after = evidence.original.quantization_ops, evidence.quantization_ops
        if before != after:
            yield Violation(_show(before), _show(after))


def _show(ops: Counter[str]) -> str:
    return ", ".join(f"{name} x{n}" for name, n in sorted(ops.items())) or "no Q/DQ ops"

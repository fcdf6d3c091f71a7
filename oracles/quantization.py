"""Oracle ``quantization``: a fold that computes through a Q/DQ node hands the delegate a float weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from oracles.evidence import Evidence
from oracles.oracle import Violation


class Quantization:
    """Counts quantize and dequantize ops before and after the fold, both functionalized."""

    name = "quantization"
    rule = "The quantized_decomposed and torchao ops are the same before and after the fold."
    script = """for name, program in programs.items():
    folded = Partitioner().transform_for_pre_decomposition(program)
    before, after = (
        sorted(str(n.target) for n in p.run_decompositions({{}}).graph.nodes
               if getattr(n.target, "namespace", "") in ("quantized_decomposed", "torchao"))
        for p in (program, folded)
    )
    print("before:", before, "after:", after)
    if before != after:
        return True
return False"""

    def check(self, evidence: Evidence) -> Iterator[Violation]:
        facts = evidence.original.facts
        if facts is not None and not facts.quantized:
            return
        before, after = evidence.original.quantization_ops, evidence.quantization_ops
        if before != after:
            yield Violation(_show(before), _show(after))


def _show(ops: Counter[str]) -> str:
    return ", ".join(f"{name} x{n}" for name, n in sorted(ops.items())) or "no Q/DQ ops"

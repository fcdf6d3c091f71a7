"""The fold as it was first published: ExecuTorch 1.5.1's ``constant_prop_pass`` behind the hook.

It skips scalar fills and every op that quantizes. Stand-alone scripts show a class as it stands here.
"""

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.passes.constant_prop_pass import constant_prop_pass

SKIPPED = ("aten.full", "aten.ones", "aten.zeros", "aten.new_", "quantized_decomposed", "torchao")


class ConstantProp(XnnpackPartitioner):
    def transform_for_pre_decomposition(self, program):
        program = program.run_decompositions({})
        skipped = {n.target for n in program.graph.nodes if str(n.target).startswith(SKIPPED)}
        return constant_prop_pass(program, skipped)


class ConstantPropUnfunctionalized(XnnpackPartitioner):
    def transform_for_pre_decomposition(self, program):
        skipped = {n.target for n in program.graph.nodes if str(n.target).startswith(SKIPPED)}
        return constant_prop_pass(program, skipped)

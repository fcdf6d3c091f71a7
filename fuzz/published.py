"""The fold as it was first published: ExecuTorch 1.5.1's ``constant_prop_pass`` behind the hook.

The skip set is that of the published form: scalar fills and every op that quantizes. The source of this
module is shown as it stands in stand-alone scripts.
"""

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.passes.constant_prop_pass import constant_prop_pass

FILLS = {"full", "ones", "zeros"}


def skipped(target):
    name = target._schema.name.split("::")[1].removeprefix("new_").removesuffix("_like")
    return target.namespace in ("quantized_decomposed", "torchao") or name in FILLS


class ConstantProp(XnnpackPartitioner):
    def transform_for_pre_decomposition(self, program):
        return propagate(program.run_decompositions({}))


class ConstantPropUnfunctionalized(XnnpackPartitioner):
    def transform_for_pre_decomposition(self, program):
        return propagate(program)


def propagate(program):
    targets = {n.target for n in program.graph.nodes if hasattr(n.target, "_schema")}
    return constant_prop_pass(program, {target for target in targets if skipped(target)})

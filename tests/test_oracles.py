"""The oracles: each is silent on a fold that is right, and each catches a fold that breaks its rule."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from corpus.store import CASES, load
from fold import FoldingXnnpackPartitioner, WeightFold
from fuzz.published import ConstantProp
from fuzz.script import script
from generators.program import Call, Input, Method, Program, Step, Tensor
from oracles import graph
from oracles.catalogue import ORACLES
from oracles.compare import amplified
from oracles.evidence import Evidence
from oracles.judge import judge_program
from oracles.lowering import Partitions
from oracles.original import ProgramOriginal
from oracles.partitions import worse
from oracles.stages import StageFailure, stage
from oracles.subject import STOCK, Subject
from oracles.verdict import Finding

FOLD = Subject("fold", FoldingXnnpackPartitioner)
PUBLISHED = Subject("constant-prop", ConstantProp)


def case(name: str) -> Program:
    return load(CASES / f"{name}.json").program


def hook(function: Any) -> Subject:
    class Partitioner(XnnpackPartitioner):
        def transform_for_pre_decomposition(self, program):
            return function(program)

    return Subject("test", Partitioner)


def frozen_state(program):
    """Takes every write out of the program."""
    program = program.run_decompositions({})
    specs = program.graph_signature.output_specs
    kept = [i for i, spec in enumerate(specs) if "MUTATION" not in spec.kind.name]
    output = program.graph.output_node()
    output.args = (tuple(output.args[0][i] for i in kept),)
    program.graph_signature.output_specs = [specs[i] for i in kept]
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def doubled_weights(program):
    """Keeps the graph and spoils the numbers."""
    with torch.no_grad():
        for tensor in program.state_dict.values():
            tensor.mul_(2)
    return program


def crash(program):
    raise IndexError("a fold that does not work\nat all")


class SwallowsQuantization(WeightFold):
    """The fold without the rule that Q/DQ ops stay."""

    quantization = frozenset()

    def pays(self, group):
        return True


def hidden_weights(program):
    """Computes the weight of every linear, which was stored, so that XNNPACK no longer takes it."""
    program = program.run_decompositions({})
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten.linear.default:
            with program.graph.inserting_before(node):
                times_one = program.graph.call_function(torch.ops.aten.mul.Tensor, (node.args[1], 1.0))
            times_one.meta["val"] = node.args[1].meta["val"]
            node.replace_input_with(node.args[1], times_one)
    program.graph_module.recompile()
    return program


BROKEN = {
    "lowers": ("weight-norm-conv1d", crash),
    "mutation": ("buffer-accumulates", frozen_state),
    "quantization": ("quantized-weight", lambda program: SwallowsQuantization(program).fold()),
    "numerics": ("spectral-norm-linear", doubled_weights),
}


@pytest.mark.parametrize("oracle", BROKEN)
def test_oracle_convicts_a_fold_that_breaks_its_rule(oracle):
    name, function = BROKEN[oracle]
    (finding, *_) = judge_program(case(name), hook(function), (oracle,)).findings
    assert (finding.oracle, finding.attribution) == (oracle, "fault")
    assert finding.rule == ORACLES[oracle].rule and finding.expected and finding.got


def test_partitions_convicts_a_fold_that_is_worse_than_none():
    plain = Program(
        (Method("forward", (Input("x", (2, 4)),), (Step("linear", ("x", "w"), ("y",)),), ("y",)),),
        (Call("forward"),),
        (Tensor("w", "parameter", (4, 4)),),
    )
    (finding,) = judge_program(plain, hook(hidden_weights), ("partitions",)).findings
    assert (finding.oracle, finding.attribution) == ("partitions", "fault")


@pytest.mark.parametrize("name", [BROKEN[oracle][0] for oracle in BROKEN])
def test_oracles_are_silent_on_the_fold(name):
    verdict = judge_program(case(name), FOLD)
    assert (verdict.outcome, verdict.findings) == ("passes", ())


def test_no_fold_is_a_gap_and_not_a_fault():
    (finding,) = judge_program(case("weight-norm-conv1d"), STOCK).findings
    assert (finding.oracle, finding.attribution) == ("partitions", "gap")
    assert "conv.weight" in finding.expected and "convolution" in finding.got


def test_what_stock_lowering_breaks_too_is_upstream():
    class Broken(XnnpackPartitioner):
        def partition(self, exported_program):
            raise RuntimeError("no partition for anybody")

    (finding,) = judge_program(case("weight-norm-conv1d"), Subject("test", Broken), ("lowers",)).findings
    assert finding.attribution == "upstream" and finding.exception == "RuntimeError"


@pytest.mark.parametrize("complaint, attribution", [("stored", "upstream"), ("folded", "fault")])
def test_a_weight_that_the_delegate_does_not_take_is_upstream_whoever_folds_it(complaint, attribution):
    """``stored``: it takes no weight that is stored. ``folded``: none that this very fold stored."""

    class Picky(FoldingXnnpackPartitioner):
        def partition(self, exported_program):
            names = [str(spec.target) for spec in exported_program.graph_signature.input_specs]
            stored = not any(name.endswith("original0") for name in names)
            folded = any(name.endswith("_folded") for name in names)
            if stored if complaint == "stored" else folded:
                raise RuntimeError("not such a weight")
            return super().partition(exported_program)

    verdict = judge_program(case("weight-norm-conv1d"), Subject("test", Picky), ("lowers",))
    assert [finding.attribution for finding in verdict.findings] == [attribution]


def test_copies_that_write_an_input_back_are_not_counted():
    """One more is there for each time that the program was functionalized."""
    program = Program(
        (
            Method(
                "forward",
                (Input("x", (2, 4)), Input("state", (2, 4))),
                (Step("linear", ("x", "w"), ("y",)), Step("add_", ("state", "y"))),
                ("y",),
            ),
        ),
        (Call("forward"),),
        (Tensor("w", "parameter", (4, 4)),),
    )
    original = ProgramOriginal(program, lambda stage: None)
    copies, counts = [], []
    for times in (0, 1):
        exported = original.exported()["forward"]
        for _ in range(times):
            exported = exported.run_decompositions({})
        edge = to_edge_transform_and_lower(exported, partitioner=[XnnpackPartitioner()]).exported_program()
        copies.append(sum("aten.copy." in str(node.target) for node in edge.graph.nodes))
        counts.append(graph.ops(edge))
    assert copies[1] == copies[0] + 1
    assert counts[0] == counts[1] and not counts[0]["aten.copy.default"]


def test_a_fold_that_is_right_costs_one_lowering():
    assert judge_program(case("weight-norm-conv1d"), FOLD).lowerings == 1


def test_evidence_keeps_a_stage_that_raised():
    evidence = Evidence(ProgramOriginal(case("spectral-norm-linear"), lambda name: None), hook(crash))
    with pytest.raises(StageFailure) as first:
        _ = evidence.lowered
    with pytest.raises(StageFailure) as second:
        _ = evidence.lowered
    assert first.value is second.value
    assert first.value.stage == "fold (test)" and first.value.exception == "IndexError"


def test_stage_is_reported_before_it_runs():
    heard = []
    with (
        pytest.raises(StageFailure, match="inner: KeyError"),
        stage("outer", heard.append),
        stage("inner", heard.append),
    ):
        raise KeyError("x")
    assert heard == ["outer", "inner"]


@pytest.mark.parametrize(
    ("got", "than", "expected"),
    [
        ((1, []), (1, []), False),
        ((2, ["a"]), (1, []), True),
        ((2, []), (1, []), True),
        ((2, []), (1, ["a"]), False),
        ((1, []), (2, ["a"]), False),
    ],
)
def test_worse(got, than, expected):
    from collections import Counter

    counts = [Partitions(number, Counter(ops)) for number, ops in (got, than)]
    assert worse(*counts) is expected


def test_ops_of_both_dialects_go_by_their_schema_name():
    evidence = Evidence(ProgramOriginal(case("quantized-weight"), lambda name: None), FOLD)
    ops = graph.ops(evidence.original.functional["forward"])
    assert ops["aten.linear.default"] == 2
    quantize = "quantized_decomposed.quantize_per_tensor.default"
    assert graph.quantization_ops(ops)[quantize] == 1
    assert evidence.quantization_ops == evidence.original.quantization_ops
    assert evidence.stock.lowered.outside["aten.mm.default"] == 2


def test_fingerprint_tells_causes_apart():
    base = Finding("lowers", "fault", "rule", "e", "g", exception="KeyError", frame="a.py:f")
    same = Finding("lowers", "fault", "rule", "other", "numbers", exception="KeyError", frame="a.py:f")
    other = Finding("lowers", "fault", "rule", "e", "g", exception="TypeError", frame="a.py:f")
    blame = Finding("lowers", "upstream", "rule", "e", "g", exception="KeyError", frame="a.py:f")
    assert base.fingerprint == same.fingerprint
    assert len({base.fingerprint, other.fingerprint, blame.fingerprint}) == 3
    assert base.cause == blame.cause


@pytest.mark.parametrize("name", ["slice-of-weight", "kv-cache", "quantized-and-parametrized"])
@pytest.mark.parametrize("subject", ["stock", "fold"])
def test_what_was_run_and_the_script_export_the_same_graph(name, subject):
    loaded = load(CASES / f"{name}.json")
    shown: dict[str, Any] = {"__name__": "__main__"}
    with pytest.raises(SystemExit):
        exec(compile(script(loaded, subject), "script", "exec"), shown)
    ours = ProgramOriginal(loaded.program, lambda stage: None).exported()["forward"]
    assert str(shown["programs"]["forward"].graph) == str(ours.graph)
    assert str(shown["programs"]["forward"].graph_signature) == str(ours.graph_signature)


def test_a_tagged_weight_is_run_from_its_external_file():
    """Folded, it is stored in the external file, without which the program does not run."""
    steps = (Step("t", ("w",), ("v",)), Step("linear", ("x", "v"), ("y",)))
    method = Method("forward", (Input("x", (2, 4)),), steps, ("y",))
    program = Program((method,), (Call("forward"),), (Tensor("w", "parameter", (4, 4), tag="weights"),))
    original = ProgramOriginal(program, lambda name: None)
    evidence = Evidence(original, FOLD)
    assert evidence.lowered.data is not None and len(evidence.lowered.data) > 4 * 16
    torch.testing.assert_close(evidence.outputs, original.eager)
    assert judge_program(program, FOLD).outcome == "passes"


def test_what_another_method_wrote_is_not_compared():
    """Methods of one loaded file do not share state, so that no lowering could be right."""
    b = Tensor("b", "buffer", (4, 4))
    steps = (Step("linear", ("x", "b"), ("y",)), Step("relu", ("x",), ("r",)))
    read = Method("read", (Input("x", (2, 4)),), steps, ("y", "r"))
    write = Method("write", (Input("z", (4, 4)),), (Step("add_", ("b", "z")),), ("z",))
    made = Program((read, write), (Call("write"), Call("read")), (b,))
    original = ProgramOriginal(made, lambda stage: None)
    assert original.foreign_outputs("read") == {0} and original.foreign_outputs("write") == frozenset()
    evidence = Evidence(original, STOCK)
    assert not torch.equal(evidence.outputs[1][0], original.eager[1][0])
    assert judge_program(made, STOCK, ("numerics", "mutation")).findings == ()


def test_strict_programs_are_told_apart():
    """Dynamo looks helpers up in the program's module, and must not find another program's."""
    for kind, param in (("doubled", {"times": 3}), ("standardized", {"dim": 0})):
        steps = (Step(kind, ("w",), ("v",), param), Step("linear", ("x", "v"), ("y",)))
        method = Method("forward", (Input("x", (2, 4)),), steps, ("y",))
        made = Program((method,), (Call("forward"),), (Tensor("w", "parameter", (4, 4)),), strict=True)
        assert ProgramOriginal(made, lambda stage: None).exported().keys() == {"forward"}


def test_rounding_that_a_norm_amplifies_is_nobodys_fault():
    """Padding makes rows of one number: their variance is rounding, and the norm divides by its root."""
    attrs = {"stride": 2, "padding": 2, "dilation": 1, "groups": 2}
    steps = (
        Step("conv2d", ("x", "w", "b"), ("v",), attrs),
        Step("layer_norm", ("v", "scale", "shift"), ("y",)),
    )
    tensors = (
        Tensor("w", "parameter", (4, 2, 1, 1)),
        Tensor("b", "parameter", (4,)),
        Tensor("scale", "parameter", (3,)),
        Tensor("shift", "parameter", (3,)),
    )
    method = Method("forward", (Input("x", (2, 4, 4, 1)),), steps, ("y",))
    made = Program((method,), tuple(Call("forward", i) for i in range(3)), tensors)
    original = ProgramOriginal(made, lambda stage: None)
    assert judge_program(made, STOCK, ("numerics",)).findings == ()
    # Wrong numbers are still far outside.
    assert 0 < max(amplified(original, i, 0) for i in range(3)) < 1e-2

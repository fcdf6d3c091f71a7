"""What the fold is for: what XNNPACK takes of folded programs, run and compared with eager."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import EdgeProgramManager, ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.passes.external_constants_pass import (
    delegate_external_constants_pass_unlifted,
)
from executorch.exir.passes.init_mutable_pass import InitializedMutableBufferPass
from executorch.extension.pybindings.portable_lib import _load_for_executorch_from_buffer
from test_fold import Net, Side, seeded, w  # noqa: F401
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.nn.utils import parametrizations
from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
from torchao.quantization.granularity import PerGroup
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

from fold import FoldingXnnpackPartitioner, WeightFold, fold_weights


class Lowered(NamedTuple):
    """A lowered program with its runtime module; the manager keeps the module's bytes alive."""

    edge: EdgeProgramManager
    manager: Any
    module: Any
    outside: list[str]

    @property
    def delegates(self) -> int:
        return self.outside.count("executorch_call_delegate")

    @property
    def ops(self) -> set[str]:
        return set(self.outside) - {"executorch_call_delegate", "getitem"}


def lower(program: ExportedProgram, partitioner=FoldingXnnpackPartitioner, passes=()) -> Lowered:
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner()])
    nodes = [n for n in edge.exported_program().graph.nodes if n.op == "call_function"]
    outside = [getattr(n.target, "__name__", str(n.target)) for n in nodes]
    manager = edge.to_executorch(ExecutorchBackendConfig(passes=list(passes)))
    return Lowered(edge, manager, _load_for_executorch_from_buffer(manager.buffer), outside)


def check_lowered(model: nn.Module, *inputs: torch.Tensor, delegates: int = 1, ops=()) -> Lowered:
    """Lower with the fold, run, compare with eager; expect no op outside but ``ops``."""
    lowered = lower(export(model.eval(), inputs))
    compare(lowered, model(*inputs), *inputs)
    assert (lowered.delegates, lowered.ops) == (delegates, set(ops))
    return lowered


def compare(lowered: Lowered, expected: Any, *inputs: torch.Tensor, tolerance: float = 1e-4) -> None:
    expected = expected if isinstance(expected, tuple) else (expected,)
    got = tuple(lowered.module.forward(list(inputs)))
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def test_weight_norm_conv1d_is_delegated_whole():
    model = parametrizations.weight_norm(nn.Conv1d(8, 8, 3, groups=2))
    stock = lower(export(model.eval(), (w(1, 8, 10),)), XnnpackPartitioner)
    assert stock.delegates == 2 and "aten.convolution.default" in stock.ops
    folded = check_lowered(model, w(1, 8, 10))
    assert len(folded.manager.buffer) <= len(stock.manager.buffer)


def test_conv1d_weight_of_a_non_persistent_buffer():
    model = Net(lambda s, x: F.conv1d(x, s.w * 2), {"w": w(4, 4, 3)})
    model.register_buffer("w", model.w, persistent=False)
    check_lowered(model, w(1, 4, 6))


LOWERED = {
    "transpose": (lambda s, x: F.linear(x, s.w.t()), {"w": w(8, 6)}, (2, 8)),
    "slice": (lambda s, x: F.linear(x, s.w[8:]), {"w": w(24, 8)}, (2, 8)),
    "bias": (lambda s, x: F.linear(x, s.w, s.b[2:]), {"w": w(6, 8), "b": w(8)}, (2, 8)),
    "addmm": (lambda s, x: torch.addmm(s.b * 2, x, s.w.t()), {"w": w(6, 8), "b": w(6)}, (2, 8)),
    "matmul": (lambda s, x: x @ (s.w * 2), {"w": w(8, 6)}, (2, 3, 8)),
    "transposed1d": (lambda s, x: F.conv_transpose1d(x, s.w * 2), {"w": w(4, 3, 2)}, (1, 4, 6)),
    "transposed2d": (
        lambda s, x: F.conv_transpose2d(x, s.w * 2, s.b * 2),
        {"w": w(4, 3, 2, 2), "b": w(3)},
        (1, 4, 6, 6),
    ),
    "depthwise": (lambda s, x: F.conv2d(x, s.w * 2, groups=4), {"w": w(4, 1, 3, 3)}, (1, 4, 6, 6)),
    "channels last": (
        lambda s, x: F.conv2d(x, (s.w * 2).contiguous(memory_format=torch.channels_last)),
        {"w": w(4, 4, 2, 2)},
        (1, 4, 6, 6),
    ),
    "inline": (lambda s, x: F.linear(x, torch.tensor([[1.0, 2.0], [3.0, 4.0]])), {}, (1, 2)),
    "mask": (lambda s, x: F.linear(x, s.w * torch.ones(8, 8).tril()), {"w": w(8, 8)}, (2, 8)),
}


def test_folded_weights_are_delegated():
    layer = parametrizations.spectral_norm(nn.Linear(8, 8))
    model = Side(
        [
            *(Net(body, **parameters) for body, parameters, _ in LOWERED.values()),
            Net(packed, w=w(24, 8), b=w(24)),
            nn.Sequential(layer, nn.ReLU(), layer),
        ]
    )
    check_lowered(model, *(w(*shape) for _, _, shape in LOWERED.values()), w(2, 8), w(2, 8))


def packed(s, x):
    (q, k, v), (a, b, c) = s.w.chunk(3), s.b.chunk(3)
    return F.linear(x, q, a) * F.linear(x, k, b) + F.linear(x, v, c)


def test_what_is_left_outside_is_right():
    bodies = [
        # XNNPACK gets these wrong if their weight is stored; see fold/gemm.py.
        lambda s, x: torch.addmm(s.b, x, s.w.t()),
        lambda s, x: torch.addmm(s.b[0], x, s.w.t(), beta=0.5, alpha=2),
        lambda s, x: F.linear(x, s.w.t()[0]),
        # A fill stays an op, and a draw is drawn anew.
        lambda s, x: F.linear(x, torch.ones(4, 4)),
        lambda s, x: F.linear(x, s.w * torch.rand(4, 4)),
    ]
    model = Side([*(Net(body, w=w(4, 4), b=w(4, 4)) for body in bodies), Net(packed, w=w(12, 4), b=w(12))])
    inputs = [w(4, 4) for _ in range(6)]
    lowered = lower(export(model.eval(), tuple(inputs)))
    assert lowered.ops >= {"aten.full.default", "aten.rand.default"}
    (*first, draw, last), (*_, redraw, _) = (lowered.module.forward(inputs) for _ in range(2))
    assert not torch.equal(draw, redraw)
    expected = model(*inputs)
    torch.testing.assert_close((*first, last), (*expected[:4], expected[5]), rtol=1e-4, atol=1e-4)


def test_cache_follows_eager_call_after_call():
    def body(s, x):
        s.cache[:, 1:].copy_(s.cache[:, :-1].clone())
        s.cache[:, :1].copy_(F.linear(x, s.w.t()).unsqueeze(1))
        return F.linear(x, s.v * 2) + s.cache.sum(1) + F.linear(x, s.cache[0, :3].t() @ s.cache[0, :3])

    model = Net(body, {"cache": torch.zeros(2, 4, 8)}, w=w(8, 8), v=w(8, 8)).eval()
    # InitializedMutableBufferPass retraces the write into the cache, which autograd forbids.
    model.requires_grad_(False)
    lowered = lower(
        export(copy.deepcopy(model), (w(2, 8),)), passes=[InitializedMutableBufferPass(["cache"])]
    )
    for _ in range(3):
        x = w(2, 8)
        compare(lowered, model(x), x)


def test_control_flow_keeps_what_its_branches_capture():
    def body(s, x):
        y = torch.cond(x.sum() > 0, lambda x: x @ s.w, lambda x: x - s.w[0], (x,))
        return F.linear(y, s.v * 2)

    model = Net(body, w=w(4, 4), v=w(4, 4)).eval()
    lowered = lower(export(model, (torch.ones(2, 4),)))
    assert lowered.delegates == 1
    for x in (torch.ones(2, 4), -torch.ones(2, 4)):
        compare(lowered, model(x), x)


def test_dynamic_batch():
    model = parametrizations.weight_norm(nn.Linear(4, 3)).eval()
    shapes = ({0: Dim("batch", min=1, max=8)},)
    lowered = lower(export(model, (w(2, 4),), dynamic_shapes=shapes))
    assert (lowered.delegates, lowered.ops) == (1, set())
    for batch in (1, 2, 7):
        compare(lowered, model(x := w(batch, 4)), x)


def quantization(program: ExportedProgram) -> Counter:
    """The quantization ops of a program, functionalized as lowering does first."""
    targets = (str(node.target) for node in program.run_decompositions({}).graph.nodes)
    return Counter(t for t in targets if t.startswith(("quantized_decomposed", "torchao")))


def test_quantized_weight_stays_beside_one_that_is_folded():
    model = nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)).eval()
    config = Int8DynamicActivationIntxWeightConfig(weight_dtype=torch.int4, weight_granularity=PerGroup(32))
    quantize_(model, config)
    alone = WeightFold(export(model, (w(1, 32),)))
    alone.analyse()
    assert alone.constants and alone.select() == []
    model.append(Net(lambda s, x: F.linear(x, s.w.t()), w=w(32, 4)))
    program = export(model, (x := w(1, 32),))
    folded = fold_weights(program)
    assert folded is not program and quantization(program)
    assert quantization(folded) == quantization(program)
    lowered = lower(program)
    assert lowered.ops == set()
    # XNNPACK rounds quantized activations in its own way.
    compare(lowered, model(x), x, tolerance=0.05)


@pytest.mark.parametrize("dynamic", [False, True])
def test_quantized_weights_of_pt2e_stay(dynamic):
    model = nn.Sequential(nn.Linear(16, 16), parametrizations.weight_norm(nn.Linear(16, 16))).eval()
    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
    )
    prepared = prepare_pt2e(export(model, (w(2, 16),)).module(), quantizer)
    prepared(w(2, 16))
    program = export(convert_pt2e(prepared), (w(2, 16),))
    assert quantization(program)
    assert fold_weights(program) is program


def test_external_tag_lands_the_folded_weight_in_its_file():
    layer = parametrizations.weight_norm(nn.Linear(8, 8)).eval()
    tagged = export(layer, (w(2, 8),)).module()
    delegate_external_constants_pass_unlifted(tagged, lambda node: "weights")
    lowered = lower(export(tagged, (w(2, 8),)))
    assert list(lowered.manager._tensor_data) == ["weights"]

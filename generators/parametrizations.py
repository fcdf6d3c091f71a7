"""Family ``parametrizations``: layers whose weight or bias ``torch.nn.utils`` computes from parameters."""

from __future__ import annotations

import math
from collections.abc import Callable

from generators.builder import Builder
from generators.members import Admits, Member, Shape, any_shape, block, member, named, rank
from generators.program import Parametrization, Target
from generators.vocabulary import PARAMETRIZATIONS, ParametrizationKind

FAMILY = "parametrizations"

SCALE = """class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, tensor):
        return tensor * self.scale"""
SOFTPLUS = """class Softplus(nn.Module):
    def forward(self, tensor):
        return F.softplus(tensor)"""
GATE = """class Gate(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.gate = nn.Parameter(torch.randn(shape))

    def forward(self, tensor):
        return tensor * torch.sigmoid(self.gate)"""
SYMMETRIC = """class Symmetric(nn.Module):
    def forward(self, tensor):
        return tensor.triu() + tensor.triu(1).t()"""
LOW_RANK = """class LowRank(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.up = nn.Parameter(torch.randn(shape[0], 2))
        self.down = nn.Parameter(torch.randn(2, shape[1]))

    def forward(self, tensor):
        return tensor + self.up @ self.down"""
STANDARDIZE = """class Standardize(nn.Module):
    def forward(self, tensor):
        dims = list(range(1, tensor.dim()))
        var, mean = torch.var_mean(tensor, dims, correction=0, keepdim=True)
        return (tensor - mean) * torch.rsqrt(var + 0.1)"""
REGISTER = "parametrize.register_parametrization(self.{layer}, '{target}', {call})"


def _matrix_like(shape: Shape) -> bool:
    return len(shape) > 1


def _elements(tensors: int) -> Callable[[Shape], int]:
    return lambda shape: tensors * math.prod(shape) + 1


def _weight_norm(name: str, sentence: str, dim: str, kept: Callable[[Shape], int]) -> ParametrizationKind:
    return ParametrizationKind(
        name,
        sentence,
        f"parametrizations.weight_norm(self.{{layer}}, '{{target}}'{dim})",
        lambda shape: math.prod(shape) + kept(shape),
        admits=_matrix_like,
        first=True,
    )


def _own(
    name: str, sentence: str, source: str, call: str, stored: int, admits: Admits = any_shape
) -> ParametrizationKind:
    return ParametrizationKind(name, sentence, REGISTER, _elements(stored), source, call, admits)


for kind in (
    _weight_norm("weight_norm", "torch's weight_norm over dimension 0.", "", lambda shape: shape[0]),
    _weight_norm("weight_norm_dim1", "weight_norm over dimension 1.", ", dim=1", lambda shape: shape[1]),
    _weight_norm("weight_norm_none", "weight_norm over the whole weight.", ", dim=None", lambda shape: 1),
    ParametrizationKind(
        "spectral_norm",
        "torch's spectral_norm: reads two buffers, which it writes in training mode only.",
        "parametrizations.spectral_norm(self.{layer}, '{target}')",
        lambda shape: math.prod(shape) + shape[0] + math.prod(shape[1:]),
        admits=_matrix_like,
        trained=("_u", "_v"),
    ),
    ParametrizationKind(
        "orthogonal",
        "torch's orthogonal by Householder reflections.",
        "parametrizations.orthogonal(self.{layer}, '{target}', orthogonal_map='householder')",
        lambda shape: 2 * math.prod(shape),
        admits=rank(2),
        first=True,
    ),
    ParametrizationKind(
        "legacy_weight_norm",
        "The older weight_norm of ``torch.nn.utils``, which computes the weight in a hook.",
        "nn.utils.weight_norm(self.{layer}, '{target}')",
        lambda shape: math.prod(shape) + shape[0],
        admits=_matrix_like,
        alone=True,
    ),
    ParametrizationKind(
        "prune",
        "A pruning mask of ``torch.nn.utils.prune``, which is a buffer.",
        "prune.l1_unstructured(self.{layer}, '{target}', amount=0.5)",
        lambda shape: 2 * math.prod(shape),
        alone=True,
    ),
    _own("scale", "A user's: times a scalar parameter.", SCALE, "Scale()", 1),
    _own("softplus", "A user's: softplus, a function without tensors of its own.", SOFTPLUS, "Softplus()", 1),
    _own("gate", "A user's: times the sigmoid of a second parameter.", GATE, "Gate({shape})", 2),
    _own("symmetric", "A user's: a symmetric matrix.", SYMMETRIC, "Symmetric()", 1,
         lambda shape: len(shape) == 2 and shape[0] == shape[1]),
    _own("low_rank", "A user's: plus a product of two thin matrices.", LOW_RANK, "LowRank({shape})", 1,
         rank(2)),
    _own("standardize", "A user's: weight standardization.", STANDARDIZE, "Standardize()", 1, _matrix_like),
):  # fmt: skip
    PARAMETRIZATIONS[kind.name] = kind


def _one(name: str) -> Callable[[Builder, Target, Shape], list[Parametrization]]:
    return lambda b, target, shape: [Parametrization(name, target)]


for kind in PARAMETRIZATIONS.values():
    named(Member(kind.name, FAMILY, "layer", kind.sentence, _one(kind.name), kind.admits))


@member("layer", FAMILY, "chained")
def draw_chained(b: Builder, target: Target, shape: Shape) -> list[Parametrization]:
    """Two parametrizations on one weight."""
    first = [k.name for k in PARAMETRIZATIONS.values() if k.admits(shape) and not k.alone]
    second = [name for name in first if not PARAMETRIZATIONS[name].first]
    return [Parametrization(b.pick(first), target), Parametrization(b.pick(second[::-1]), target)]


@block(FAMILY, "shared-parametrization", _matrix_like)
def draw_shared(b: Builder, x: str) -> str:
    """One parametrization module on the weights of two layers."""
    for _ in range(2):
        inner, outer = b.shape(x)[-1], b.channels()
        shared = [Parametrization("scale", shared=True)]
        x = b.call(b.layer("Linear", shared, in_features=inner, out_features=outer, bias=False), x)
    return x


@block(
    FAMILY, "training-spectral-norm", _matrix_like, excludes=frozenset({"joint", "quantization", "strict"})
)
def draw_training(b: Builder, x: str) -> str:
    """spectral_norm exported in training mode: every call writes its two buffers."""
    b.options["train"] = True
    inner, outer = b.shape(x)[-1], b.channels()
    drawn = [Parametrization("spectral_norm")]
    return b.call(b.layer("Linear", drawn, in_features=inner, out_features=outer, bias=False), x)

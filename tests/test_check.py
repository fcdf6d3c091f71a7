"""``foldfuzz check`` on programs that users save: whole models, with state, with sizes that are free."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from fuzz.checking import check
from fuzz.presentation import check_rows
from fuzz.subjects import resolve


class Sized(nn.Module):
    """Returns a size beside its activation."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))

    def forward(self, x):
        return self.linear(x), x.shape[0]


class Cache(nn.Module):
    """A KV cache: keys of a position are kept, and read by every later call."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
        self.register_buffer("keys", torch.zeros(1, 8, 4))

    def forward(self, x, position):
        self.keys.index_copy_(1, position, self.key(x))
        return torch.softmax(x @ self.keys.transpose(1, 2), dim=-1)


def saved(path, model, inputs, **options):
    with torch.no_grad():
        torch.export.save(torch.export.export(model.eval(), inputs, **options), path)
    return path


def checked(path, subject="fold"):
    return check(path, resolve(subject), lambda stage: None)


def test_free_sizes_are_no_ops_left_outside(tmp_path):
    shapes = {"x": {0: torch.export.Dim("batch", min=1, max=8)}}
    path = saved(tmp_path / "sized.pt2", Sized(), (torch.randn(2, 4),), dynamic_shapes=shapes)
    result = checked(path)
    assert result.verdict.findings == ()
    assert result.columns[1].outside == () and result.columns[0].outside != ()


def test_a_cache_is_called_until_its_state_shows(tmp_path):
    inputs = (torch.randn(1, 1, 4), torch.tensor([2]))
    path = saved(tmp_path / "cache.pt2", Cache(), inputs)
    result = checked(path)
    assert result.verdict.findings == () and result.verdict.unjudged == {}
    assert all(column.relative < 1e-5 for column in result.columns)


def test_after_a_fold_that_raises_the_rest_is_not_judged(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    path = saved(tmp_path / "plain.pt2", nn.Linear(4, 4), (torch.randn(2, 4),))
    broken = checked(path, "deadly_folds:refuse")
    assert [item.attribution for item in broken.verdict.findings] == ["fault"]
    assert broken.verdict.unjudged.keys() == {"mutation", "numerics", "partitions", "quantization"}


def test_what_stock_fails_on_is_upstream_and_the_rest_is_not_judged(tmp_path):
    class Unlowerable(nn.Module):
        def forward(self, x):
            return torch.multinomial(x.softmax(-1), 2)

    path = saved(tmp_path / "unlowerable.pt2", Unlowerable(), (torch.randn(2, 4),))
    result = checked(path)
    assert [item.attribution for item in result.verdict.findings] == ["upstream"]
    assert {"numerics", "partitions"} <= result.verdict.unjudged.keys()
    assert all("lower" in reason for reason in result.verdict.unjudged.values())
    assert ("failed" in dict([row[:2] for row in check_rows(result.columns)])) and result.columns[0].failure


@pytest.mark.parametrize("subject", ["fold", "stock"])
def test_the_columns_are_stock_and_the_subject(tmp_path, subject):
    path = saved(tmp_path / "plain.pt2", nn.Linear(4, 4), (torch.randn(2, 4),))
    assert [column.name for column in checked(path, subject).columns] == ["stock", "fold"][
        : 1 + (subject == "fold")
    ]

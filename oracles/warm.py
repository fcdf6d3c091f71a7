"""What makes the second program cheaper than the first, without touching what is lowered.

A third of the time of a small ``torch.export`` goes into walking all op namespaces to collect the composite
ops, which are the same every time; another third into garbage collections that walk the many objects of the
imported libraries. Both are measured in ``benchmarks/throughput.py``.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch._export import utils
from torch.export import decomp_utils, exported_program


def warm_up() -> None:
    """Caches the collected composite ops and freezes what is alive out of the garbage collector.

    To be called once in a process that lowers many programs, after its imports. The cache is renewed
    whenever an op namespace has been added, because that may bring new composite ops.
    """
    collect = utils._collect_all_valid_cia_ops
    kept: dict[int, Any] = {}

    def cached() -> Any:
        size = len(list(torch.ops._dir))
        if size not in kept:
            kept.clear()
            kept[size] = frozenset(collect())
        return kept[size]

    replacement: Callable[[], Any] = cached
    for module in (utils, exported_program, decomp_utils):
        module._collect_all_valid_cia_ops = replacement  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()

"""What makes the second program cheaper than the first, without touching what is lowered.

Where the time of a small export goes, by profile: into walking all op namespaces for the composite ops,
which are the same every time; into registering a kernel for each of them, half of which is Python building
the annotations of a nested function; into copying the provenance of each node, pass after pass; into the
patterns that the quantizer looks for, exported anew for each program; and into garbage collections that walk
the many objects of the imported libraries.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import torch
from executorch.backends.xnnpack.quantizer import xnnpack_quantizer_utils
from torch._export import utils
from torch._ops import OperatorBase
from torch.export import decomp_utils, exported_program
from torch.fx.traceback import NodeSource

COLLECT_EVERY = 50_000
"""Allocations between two collections of the youngest objects; Python's own 700 is for small heaps."""


def warm_up() -> None:
    """To be called once in a process that lowers many programs, after its imports."""
    _cache_composite_ops()
    _register_kernels_plainly()
    _share_provenance()
    _cache_patterns()
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_EVERY, 10, 10)


def _cache_composite_ops() -> None:
    """Keeps the collected composite ops until a new op namespace appears, which may bring more."""
    collect = utils._collect_all_valid_cia_ops
    kept: dict[int, Any] = {}

    def cached() -> Any:
        size = len(list(torch.ops._dir))
        if size not in kept:
            kept.clear()
            kept[size] = frozenset(collect())
        return kept[size]

    for module in (utils, exported_program, decomp_utils):
        module._collect_all_valid_cia_ops = cached  # type: ignore[attr-defined]


def _share_provenance() -> None:
    """Copies of a node share the record of where it came from, which nobody changes, and which grows."""
    NodeSource.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]


def _cache_patterns() -> None:
    """Keeps the convolution and batch norm patterns, which differ in what their functions close over."""
    export = xnnpack_quantizer_utils._get_aten_graph_module_for_pattern
    kept: dict[Any, torch.fx.GraphModule] = {}

    def cached(pattern: Any, example_inputs: tuple[torch.Tensor, ...], is_cuda: bool) -> torch.fx.GraphModule:
        function = pattern.fn
        closed = tuple(cell.cell_contents for cell in function.__closure__)
        key = (function.__code__, closed, tuple(item.shape for item in example_inputs), is_cuda)
        if key not in kept:
            kept[key] = export(pattern, example_inputs, is_cuda)
        return copy.deepcopy(kept[key])

    xnnpack_quantizer_utils._get_aten_graph_module_for_pattern = cached


def _register_kernels_plainly() -> None:
    """Registers under a dispatch key without the decorator; every other kind of key goes the old way."""
    py_impl = OperatorBase.py_impl
    python = torch._C.DispatchKey.Python

    def plain(self: OperatorBase, key: Any) -> Callable[[Any], Any]:
        if not isinstance(key, torch._C.DispatchKey) or key == python or key in self.py_kernels:
            return py_impl(self, key)

        def register(fn):  # type: ignore[no-untyped-def]  # annotations are what costs
            self.py_kernels[key] = fn
            self._dispatch_cache.clear()
            return fn

        return register

    OperatorBase.py_impl = plain  # type: ignore[method-assign, assignment]

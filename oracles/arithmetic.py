"""Eager in other arithmetic: in float64, and with every rounding error made larger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from oracles.lowering import clone


class Double(TorchFunctionMode):
    """Reads an explicit float32 as float64, so that a cast does not round the reference."""

    def __torch_function__(
        self, func: Callable[..., Any], kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = pytree.tree_map(
            lambda item: torch.float64 if item is torch.float32 else item, (args, kwargs or {})
        )
        return func(*args, **kwargs)


class Shaken(TorchFunctionMode):
    """Puts every computed float off by twice the unit roundoff (Monte Carlo arithmetic, Parker 1997)."""

    def __torch_function__(
        self, func: Callable[..., Any], kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        results = func(*args, **(kwargs or {}))
        given = {_storage(item) for item in pytree.tree_leaves((args, kwargs)) if _is_float(item)}
        # A view, or what was written in place, is the same memory and stays it.
        return pytree.tree_map(
            lambda item: shaken(item) if _is_float(item) and _storage(item) not in given else item, results
        )


def double(value: Any) -> Any:
    """A float tensor in float64; anything else as it is."""
    return value.double() if _is_float(value) else value


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def shaken(value: Any) -> Any:
    """A copy, of floats with every element off by twice the unit roundoff, up or down."""
    if not _is_float(value):
        return clone(value)
    signs = 1.0 - 2.0 * (torch.arange(value.numel()) % 3 % 2).reshape(value.shape)
    return (value.detach() * (1 + torch.finfo(value.dtype).eps * signs)).to(value.dtype)


def shake(model: torch.nn.Module) -> None:
    """Shakes every parameter and buffer of ``model``."""
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.data = shaken(tensor)

"""Subjects by name: the folds that this project knows, and any other that a user names."""

from __future__ import annotations

import copy
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from fold import FoldingXnnpackPartitioner
from fuzz.published import ConstantProp, ConstantPropUnfunctionalized
from oracles.subject import STOCK, Subject

DEFAULT = "fold"
BUILT_IN: dict[str, tuple[Callable[[], Any], str]] = {
    "fold": (FoldingXnnpackPartitioner, "this project's fold"),
    "constant-prop": (ConstantProp, "functionalize, then ExecuTorch's constant_prop_pass"),
    "constant-prop-unfunctionalized": (
        ConstantPropUnfunctionalized,
        "the same, not functionalized",
    ),
    "stock": (STOCK.partitioner, "no fold: the negative control"),
    "installed": (XnnpackPartitioner, "the hook of the installed XnnpackPartitioner"),
}


class SubjectError(ValueError):
    """A subject that cannot be had: one sentence that lists the names."""


def resolve(name: str) -> Subject:
    """The subject called ``name``: a built-in one, or ``package.module:attribute``.

    The attribute may be a partitioner class, a partitioner instance, or a callable from ExportedProgram to
    ExportedProgram. Modules in the current directory are found as well.

    Raises:
        SubjectError: the name does not resolve, or to something that is no fold.
    """
    if name == "stock":
        return STOCK
    if name in BUILT_IN:
        return Subject(name, BUILT_IN[name][0])
    module, separator, attribute = name.partition(":")
    if not (separator and module and attribute):
        raise SubjectError(f"expected a subject among {_names()}, got {name!r}")
    return Subject(name, _factory(_load(module, attribute, name), name))


def _names() -> str:
    return f"{', '.join(BUILT_IN)} or package.module:attribute"


def _load(module: str, attribute: str, name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except Exception as error:
        raise SubjectError(
            f"expected a subject among {_names()}, got {name!r}, which does not import: "
            f"{type(error).__name__}: {error}"
        ) from error
    return found


def _factory(found: Any, name: str) -> Callable[[], Any]:
    hook = "transform_for_pre_decomposition"
    if inspect.isclass(found) and hasattr(found, hook):
        return found
    if hasattr(found, hook):
        # A copy, because the harness takes the hook out of the partitioner that it lowers with.
        return lambda: copy.copy(found)
    if callable(found) and not inspect.isclass(found):
        return lambda: _with_hook(XnnpackPartitioner(), found)
    raise SubjectError(
        f"expected {name} to be a partitioner class, a partitioner or a callable from ExportedProgram "
        f"to ExportedProgram, got {type(found).__name__}"
    )


def _with_hook(partitioner: Any, hook: Callable[[Any], Any]) -> Any:
    partitioner.transform_for_pre_decomposition = hook
    return partitioner

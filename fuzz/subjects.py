"""Subjects by name: the folds that this project knows, and any other that a user names."""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable
from typing import Any

from fuzz.sandbox import Death, Sandbox
from oracles.subject import STOCK, Subject

DEFAULT = "fold"
BUILT_IN = {
    "fold": ("fold:FoldingXnnpackPartitioner", "this project's fold"),
    "constant-prop": (
        "fuzz.published:ConstantProp",
        "functionalize, then ExecuTorch's constant_prop_pass: the fold as first published",
    ),
    "constant-prop-unfunctionalized": (
        "fuzz.published:ConstantPropUnfunctionalized",
        "the same without functionalizing",
    ),
    "stock": ("oracles.subject:STOCK", "no fold at all: the negative control"),
    "installed": (
        "executorch.backends.xnnpack.partition.xnnpack_partitioner:XnnpackPartitioner",
        "whatever hook the installed XnnpackPartitioner has",
    ),
}
"""Name -> where the subject is, and what it is. Imported only when it is asked for."""
NAMED = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*", re.ASCII)
SECONDS, MEGABYTES = 300.0, 6000
"""For the import of a subject."""


class SubjectError(ValueError):
    """A subject that cannot be had: one sentence that lists the names."""


@functools.cache
def resolve(name: str) -> Subject:
    """The subject called ``name``: a built-in one, or ``package.module:attribute``.

    The attribute may be a partitioner class, a partitioner instance, or a callable from ExportedProgram to
    ExportedProgram. Modules in the current directory are found as well.

    Raises:
        SubjectError: the name does not resolve, or to something that is no fold or cannot be made.
    """
    check_form(name)
    path = BUILT_IN[name][0] if name in BUILT_IN else name
    module, _, attribute = path.partition(":")
    found = _load(module, attribute, name)
    if isinstance(found, Subject):
        return found
    subject = Subject(name, _factory(found, name))
    try:
        # Once for all: else stock, which is made by the same factory, would seem to be what fails.
        subject.partitioner()
    except Exception as error:
        raise SubjectError(
            f"expected {name} to make a partitioner, got {type(error).__name__}: {_line(error)}"
        ) from error
    return subject


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")[:200]


def check_form(name: str) -> None:
    """Raises ``SubjectError`` unless ``name`` could be a subject's; nothing is imported."""
    if name not in BUILT_IN and not NAMED.fullmatch(name):
        raise SubjectError(f"expected a subject among {_names()}, got {name[:80]!r}")


def check_name(name: str) -> None:
    """Raises ``SubjectError`` unless ``name`` resolves to a fold that can be made.

    A subject's own code runs in a child process, where it can end nothing but that. A built-in one is not
    tried.

    Raises:
        SandboxError: no child can be started.
    """
    check_form(name)
    if name in BUILT_IN:
        return
    with Sandbox("fuzz.subjects:answer", seconds=SECONDS, megabytes=MEGABYTES) as sandbox:
        reason = sandbox.ask(name.encode())
    if isinstance(reason, Death):
        raise SubjectError(f"expected {name} to import, got the end of its process: {reason.detail}")
    if reason:
        raise SubjectError(reason.decode())


def answer(name: bytes, stage: Callable[[str], None]) -> bytes:
    """In the child: why the subject cannot be had, or nothing."""
    try:
        resolve(name.decode())
    except SubjectError as error:
        return str(error).encode()
    return b""


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
            f"{type(error).__name__}: {_line(error)}"
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
        return lambda: _with_hook(STOCK.partitioner(), found)
    raise SubjectError(
        f"expected {name} to be a partitioner class, a partitioner or a callable from ExportedProgram "
        f"to ExportedProgram, got {type(found).__name__}"
    )


def _with_hook(partitioner: Any, hook: Callable[[Any], Any]) -> Any:
    partitioner.transform_for_pre_decomposition = hook
    return partitioner

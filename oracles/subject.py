"""The subject: a fold under test, reduced to what the harness needs of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Subject:
    """A name and a way to make a fresh partitioner, whose ``transform_for_pre_decomposition`` is the fold."""

    name: str
    partitioner: Callable[[], Any]


def identity(exported_program: Any) -> Any:
    """The hook that does nothing."""
    return exported_program


def without_fold(subject: Subject) -> Subject:
    """The subject's own partitioner with its fold taken out: what attribution compares with."""

    def partitioner() -> Any:
        made = subject.partitioner()
        made.transform_for_pre_decomposition = identity
        return made

    return Subject("stock", partitioner)


def instead(subject: Subject, programs: Mapping[str, Any]) -> Subject:
    """The subject's own partitioner with a hook that hands out ``programs`` in the place of what it is given.

    It is asked for the methods in their order, and not told their names.
    """

    def partitioner() -> Any:
        made = subject.partitioner()
        methods = iter(programs.values())
        made.transform_for_pre_decomposition = lambda exported_program: next(methods)
        return made

    return Subject("twin", partitioner)


def _xnnpack() -> Any:
    # Imported late, so that to name a subject takes no torch.
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    return XnnpackPartitioner()


STOCK = without_fold(Subject("stock", _xnnpack))

"""Stages: an artefact is computed once, and a stage that raises is an artefact too."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
LIBRARIES = ("executorch", "torch", "torchao", "fold")


class StageFailure(Exception):
    """A stage that raised: its name, the exception's type and first lines, the innermost library frame.

    ``frame`` is ``file.py:function`` of the innermost frame in executorch, torch or the fold; it says where
    without a line number, so that it names the same failure in the next release as well.
    """

    def __init__(self, stage: str, error: BaseException) -> None:
        super().__init__(f"{stage}: {type(error).__name__}: {error}")
        self.stage = stage
        self.exception = type(error).__name__
        self.message = str(error)
        self.frame = _innermost(error)
        self.trace = "".join(traceback.format_exception(error))


def _innermost(error: BaseException) -> str:
    found = ""
    for frame in traceback.extract_tb(error.__traceback__):
        parts = Path(frame.filename).parts
        library = next((name for name in LIBRARIES if name in parts), None)
        if library is not None:
            found = f"{library}/{parts[-1]}:{frame.name}"
    return found


@contextmanager
def stage(name: str, report: Callable[[str], None]) -> Iterator[None]:
    """Reports ``name`` as the running stage; whatever is raised inside becomes a ``StageFailure``.

    Raises:
        StageFailure: the stage raised. One from an inner stage passes unchanged.
    """
    report(name)
    try:
        yield
    except StageFailure:
        raise
    except Exception as error:
        raise StageFailure(name, error) from error


class artefact(Generic[T]):
    """A property that is computed once; a ``StageFailure`` is kept and raised again at each look."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute = compute
        self._name = f"_{compute.__name__}"
        self.__doc__ = compute.__doc__

    def __get__(self, owner: Any, kind: type) -> T:
        if owner is None:
            return self  # type: ignore[return-value]
        if self._name not in owner.__dict__:
            try:
                owner.__dict__[self._name] = self._compute(owner)
            except StageFailure as failure:
                owner.__dict__[self._name] = failure
        kept = owner.__dict__[self._name]
        if isinstance(kept, StageFailure):
            raise kept
        return kept

"""The handler of the judging child: importing it makes the process fit for many programs."""

from fuzz import quiet  # noqa: F401 - before the libraries are imported
from fuzz.judging import handle
from oracles.warm import warm_up

warm_up()

__all__ = ["handle"]

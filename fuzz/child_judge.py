"""The handler of the judging child: importing it makes the process fit for many programs."""

from fuzz.judging import handle, prepare

prepare()

__all__ = ["handle"]

"""Folds that kill their process on a program that holds a transpose, for the tests of the sandbox."""

import ctypes
import time


def _transposes(program):
    return any("aten.t." in str(node.target) for node in program.graph.nodes)


def segfault(program):
    if _transposes(program):
        ctypes.string_at(0)
    return program


def hang(program):
    if _transposes(program):
        time.sleep(600)
    return program


def refuse(program):
    raise ValueError("this fold takes nothing")


class Unmade:
    """A partitioner that cannot be made."""

    def __init__(self):
        raise KeyError("no")

    def transform_for_pre_decomposition(self, program):
        return program


def __getattr__(name):
    # Made late: to be asked for the others takes no torch.
    if name == "instance":
        from fold import FoldingXnnpackPartitioner

        return FoldingXnnpackPartitioner()
    raise AttributeError(name)

"""Folds that kill their process on a program that holds a transpose, for the tests of the sandbox."""

import ctypes
import os
import time


def _transposes(program):
    return any("aten.t." in str(node.target) for node in program.graph.nodes)


def segfault(program):
    if _transposes(program):
        ctypes.string_at(0)
    return program


def abort(program):
    if _transposes(program):
        os.abort()
    return program


def hang(program):
    if _transposes(program):
        time.sleep(600)
    return program

"""Oracles: the evidence that a program gives under a fold, and the rules that judge it.

``original`` is the program before any fold, ``subject`` the fold, ``evidence`` what the two together give,
computed stage by stage on demand. Each oracle is one class in one module; ``judge`` asks them, cheapest
first, and attributes what they report.
"""

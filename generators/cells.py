"""Blocks that hold a whole cell of a network: attention, embeddings, recurrent cells."""

from __future__ import annotations

from generators.builder import DEPTH, Builder
from generators.consumers import FAMILY
from generators.members import block, rank

VOCABULARY = 8


@block(FAMILY, "packed-projections", rank(2, 3))
def draw_packed_projections(b: Builder, x: str) -> str:
    """Three linears that share one packed weight, chunked, all chunks used."""
    inner, outer = b.shape(x)[-1], b.channels()
    packed = b.weight((3 * outer, inner), DEPTH - 1)
    first, second, third = (b.step("linear", x, part) for part in b.steps("chunk", packed, chunks=3, dim=0))
    return b.step("add", b.step("mul", first, second), third)


@block(FAMILY, "attention", rank(3))
def draw_attention(b: Builder, x: str) -> str:
    """Self-attention whose in-projection is one computed weight, its result chunked."""
    inner = b.shape(x)[-1]
    projected = b.step("linear", x, b.weight((3 * inner, inner), DEPTH), b.tensor("parameter", (3 * inner,)))
    mixed = b.step("attention", *b.steps("chunk", projected, chunks=3, dim=2))
    return b.step("linear", mixed, b.weight((inner, inner), DEPTH))


@block(FAMILY, "embedding", rank(2), static=True)
def draw_embedding(b: Builder, x: str) -> str:
    """An embedding with a computed table, added to the activation."""
    rows, width = b.shape(x)
    index = b.input((rows,), high=VOCABULARY)
    return b.step("add", x, b.step("embedding", index, b.weight((VOCABULARY, width), DEPTH)))


@block(FAMILY, "embedding-layer", rank(2), static=True)
def draw_embedding_layer(b: Builder, x: str) -> str:
    """``nn.Embedding``, perhaps under parametrizations, added to the activation."""
    rows, width = b.shape(x)
    drawn = b.parametrizations((VOCABULARY, width), None)
    table = b.layer("Embedding", drawn, num_embeddings=VOCABULARY, embedding_dim=width)
    return b.step("add", x, b.call(table, b.input((rows,), high=VOCABULARY)))


@block(FAMILY, "tied-embedding", rank(2), static=True)
def draw_tied_embedding(b: Builder, x: str) -> str:
    """An embedding whose table, scaled, is the weight of a linear as well."""
    rows, width = b.shape(x)
    table = b.tensor("parameter", (VOCABULARY, width))
    index = b.input((rows,), high=VOCABULARY)
    x = b.step("add", x, b.step("embedding", index, table))
    return b.step("linear", x, b.step("mul", table, b.tensor("parameter", ())))


def _gates(b: Builder, x: str, state: str, size: int, count: int) -> list[str]:
    """The gates of a recurrent cell: both projections added and chunked."""
    inner = b.shape(x)[-1]
    new = b.step("linear", x, b.weight((count * size, inner), DEPTH), b.tensor("parameter", (count * size,)))
    old = b.step("linear", state, b.weight((count * size, size), DEPTH))
    return b.steps("chunk", b.step("add", new, old), chunks=count, dim=1)


@block(FAMILY, "lstm-cell", rank(2), static=True)
def draw_lstm_cell(b: Builder, x: str) -> str:
    """An LSTM cell written out, its packed weights computed and its state an input."""
    rows, size = b.shape(x)[0], b.channels()
    state, memory = b.input((rows, size)), b.input((rows, size))
    given, forget, cell, out = _gates(b, x, state, size, 4)
    kept = b.step("mul", b.step("sigmoid", forget), memory)
    added = b.step("mul", b.step("sigmoid", given), b.step("tanh", cell))
    memory = b.step("add", kept, added)
    b.extra_outputs.append(memory)
    return b.step("mul", b.step("sigmoid", out), b.step("tanh", memory))


@block(FAMILY, "gru-cell", rank(2), static=True)
def draw_gru_cell(b: Builder, x: str) -> str:
    """A GRU cell written out, its packed weights computed and its state an input."""
    rows, size = b.shape(x)[0], b.channels()
    state = b.input((rows, size))
    update, new = _gates(b, x, state, size, 2)
    return b.step("add", b.step("mul", b.step("sigmoid", update), state), b.step("tanh", new))

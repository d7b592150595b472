"""Text: the shipped corpora and any text of your own, as characters, own byte-pair pieces, or GPT-2's.

A corpus is one row of token ids, cut into a training and a validation part that never touch. Documents are packed one
after the other, each followed by an end-of-text token where a corpus has documents (the shipped ones are one text), so
there is no padding inside; where a lone short row must be padded, its y is -100 and nothing is scored there.
"""

import base64
import gzip
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Literal

import numpy as np
import tiktoken
import torch
from torch import Tensor

from .sources import DataError, Piece, documents, path_of

END = "<|endoftext|>"
# GPT-2's split into words (its encoder.py), written out so that no version of tiktoken can change our pieces.
PATTERN = r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
FILE = {
    "shakespeare": "shakespeare_gutenberg_9plays.txt",
    "sotu": "sotu_1900_2021.txt.gz",
    "tinyshakespeare": "tinyshakespeare.txt",
}
ROOM = 8_000_000  # characters of a corpus of your own that are held at a time


# ---------------------------------------------------------------------------------------------------------- tokenisers
class Characters:
    """One id for each character of `alphabet`; when `open`, two more: end of text, and any other character."""

    def __init__(self, alphabet: str, open: bool = False):
        self.alphabet = alphabet
        codes = _codes(alphabet)
        self._table = np.full(int(codes.max()) + 2, -1, np.int32)  # the last entry stands for all higher codes
        self._table[codes] = np.arange(len(alphabet))
        self._names = [*alphabet, END, "\N{REPLACEMENT CHARACTER}"] if open else [*alphabet]
        self.size = len(self._names)
        self.end = len(alphabet) if open else -1
        self.unknown = len(alphabet) + 1 if open else None

    def ids(self, text: str) -> np.ndarray:
        ids = self._table[np.minimum(_codes(text), len(self._table) - 1)]
        if (ids < 0).any():
            if self.unknown is None:
                other = sorted({c for c, i in zip(text, ids, strict=True) if i < 0})
                shown = ", ".join(f"{c!r} (U+{ord(c):04X})" for c in other[:5]) + (", ..." if other[5:] else "")
                raise ValueError(f"this vocabulary has no character {shown}; it has {self.size}: {self.alphabet!r}")
            ids[ids < 0] = self.unknown
        return ids

    def decode(self, ids: list[int]) -> str:
        return "".join(self._names[i] for i in ids)


class Pieces:
    """Byte-pair pieces by a tiktoken encoding: every text has ids, and ids of whole texts decode exactly."""

    unknown = None

    def __init__(self, encoding: tiktoken.Encoding, end: int = -1):  # -1: no end-of-text token
        self.encoding, self.end = encoding, end
        self.size = encoding.n_vocab

    def ids(self, text: str) -> np.ndarray:
        return np.array(self.encoding.encode_ordinary(text), np.int64)

    def decode(self, ids: list[int]) -> str:
        return self.encoding.decode(ids)


def _codes(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)


@lru_cache(maxsize=8)
def _pieces(tokens: str, path: Path, documents: bool) -> Pieces:
    if tokens == "gpt2":
        ranks = gpt2_ranks(path.read_text("utf-8"))
    else:
        ranks = dict(list(read_ranks(path).items())[: 256 + int(tokens.removeprefix("bpe"))])
    special = {END: len(ranks)} if documents or tokens == "gpt2" else {}
    encoding = tiktoken.Encoding(tokens, pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    return Pieces(encoding, len(ranks) if documents else -1)


def pieces(tokens: str, documents: bool = False) -> Pieces:
    """The byte-pair tokeniser bpe512, bpe1024 (so many merges, trained on our Shakespeare's training part) or gpt2.

    With `documents`, an end-of-text token is there to separate them. GPT-2's vocabulary always has it.
    """
    return _pieces(tokens, path_of("gpt2_vocab.bpe" if tokens == "gpt2" else "bpe1024.tiktoken"), documents)


def gpt2_ranks(merges: str) -> dict[bytes, int]:
    """GPT-2's 50,256 ranks from its published list of merges: 256 bytes in GPT-2's order, then one for each merge."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    order = plain + [b for b in range(256) if b not in plain]
    symbols = [chr(b) for b in plain] + [chr(256 + i) for i in range(256 - len(plain))]  # GPT-2 writes bytes as these
    byte = dict(zip(symbols, order, strict=True))
    ranks = {bytes([b]): i for i, b in enumerate(order)}
    for line in merges.splitlines()[1:]:
        ranks[bytes(byte[c] for c in line.replace(" ", ""))] = len(ranks)
    return ranks


def train_bpe(text: str, size: int) -> dict[bytes, int]:
    """Byte-pair ranks learned from `text`: 256 single bytes, then size - 256 merges of the most frequent pair.

    Ties go to the pair that was learned first, so the result is the same on every machine (Sennrich et al. 2016, on
    bytes as in GPT-2). A smaller vocabulary is the beginning of a larger one.
    """
    import regex  # comes with tiktoken

    words = {word.encode(): count for word, count in Counter(regex.findall(PATTERN, text)).items()}
    ids = np.array([i for word in words for i in (*word, -1)])  # a byte is its own id; -1 ends a word
    counts = np.repeat([*words.values()], [len(word) + 1 for word in words])
    tokens = [bytes([b]) for b in range(256)]
    while (new := len(tokens)) < size:
        inside = (ids[:-1] >= 0) & (ids[1:] >= 0)
        pairs = ids[:-1] * new + ids[1:]
        best = int(np.bincount(pairs[inside], counts[:-1][inside]).argmax())  # the first of equals
        places = np.flatnonzero(inside & (pairs == best))
        number = np.arange(len(places))
        places = places[(number - np.searchsorted(places - number, places - number)) % 2 == 0]  # aaa is aa, a
        ids[places] = new
        ids, counts = np.delete(ids, places + 1), np.delete(counts, places + 1)
        tokens.append(tokens[best // new] + tokens[best % new])
    return {token: rank for rank, token in enumerate(tokens)}


def write_ranks(ranks: dict[bytes, int]) -> str:
    """tiktoken's text format: a piece in base64 and its rank, one a line."""
    return "".join(f"{base64.b64encode(piece).decode()} {rank}\n" for piece, rank in ranks.items())


def read_ranks(path: Path) -> dict[bytes, int]:
    """The ranks in a file of tiktoken's text format."""
    rows = (line.split() for line in path.read_text("ascii").splitlines())
    return {base64.b64decode(piece): int(rank) for piece, rank in rows}


# ---------------------------------------------------------------------------------------------------------------- task
class TextTask:
    """Next-token prediction on one corpus. x and y are (rows, context) int64, y is x shifted by one.

    `stream` is what is left of a corpus too large to hold (see `own`): ids that replace the oldest ones, one for each
    id drawn. Then `batch` depends on how much was drawn before, and `seek` takes a fresh task to the same place.
    """

    kind: Literal["text"] = "text"

    def __init__(
        self,
        name: str,
        tokens: Characters | Pieces,
        train: np.ndarray,
        valid: np.ndarray,
        chars_per_token: float,
        stream: Iterator[np.ndarray] | None = None,
    ):
        self.name, self.tokens, self.chars_per_token = name, tokens, chars_per_token
        self.inputs = self.outputs = tokens.size
        self.unit = "nats per character" if isinstance(tokens, Characters) else "nats per token"
        small = np.uint16 if tokens.size <= 2**16 else np.uint32
        self._train, self._valid = train.astype(small), valid.astype(small)
        self._stream, self._oldest = stream, 0  # _oldest: where in _train the stream goes on
        self._read, self._replaced = 0, -1  # ids taken from the stream; how many before the last piece
        self.drawn = 0  # ids drawn by `batch` from a stream so far

    def batch(self, rng: np.random.Generator, size: int, context: int) -> tuple[Tensor, Tensor]:
        """`size` windows at random places of the training part. Raises ValueError where it is shorter than one."""
        room = len(self._train) - context
        if room < 1:
            fit = len(self._train) - 1
            raise ValueError(f"context={context} is too long: the training part of {self.name} allows at most {fit}")
        places = rng.integers(0, room, size)[:, None] + np.arange(context + 1)
        if self._stream is not None:
            self._advance(self._stream)
            self.drawn += size * context
            places = (places + self._oldest) % len(self._train)  # the oldest id first: no window crosses the seam
        return self._scored(self._train[places].astype(np.int64))

    def seek(self, drawn: int) -> None:
        """Be where a task is from which `drawn` ids (steps x size x context) were drawn; counts for a stream only.

        Runs that share a stream must keep step: raises ValueError for a place whose text was already replaced.
        """
        if self._stream is not None and drawn <= self._replaced:
            raise ValueError(f"drawn={drawn}: the text of that place was replaced, and a stream does not run back")
        self.drawn = drawn

    def _advance(self, stream: Iterator[np.ndarray]) -> None:
        while self._read < self.drawn:
            ids, held = next(stream), len(self._train)
            places = (self._oldest + np.arange(len(ids))[-held:]) % held
            self._train[places] = ids[-held:]
            self._oldest = (self._oldest + len(ids)) % held
            self._replaced, self._read = self._read, self._read + len(ids)

    def validation(self, context: int, limit: int) -> tuple[Tensor, Tensor]:
        """Windows that do not overlap, evenly spread over the validation part; at most `limit`.

        When that part is shorter than one window, it is padded: x by 0, y by -100, which is never scored.
        Raises DataError when none of them has anything to score.
        """
        valid, last = self._valid.astype(np.int64), len(self._valid) - 1
        rows = last // context
        if rows == 0:
            valid = np.pad(valid, (0, context - last))
        chosen = np.arange(rows or 1) if rows <= limit else np.arange(limit) * rows // limit
        x, y = self._scored(valid[chosen[:, None] * context + np.arange(context + 1)])
        if rows == 0:
            x[0, last:], y[0, last:] = 0, -100
        if (y == -100).all():
            raise DataError(
                f"the validation part of {self.name}, its first tenth, has nothing to score: it is too short, or "
                "training knows none of its characters"
            )
        return x, y

    def _scored(self, windows: np.ndarray) -> tuple[Tensor, Tensor]:
        x, y = torch.from_numpy(windows[:, :-1].copy()), torch.from_numpy(windows[:, 1:].copy())
        if self.tokens.unknown is not None:
            y[y == self.tokens.unknown] = -100
        return x, y

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt. Raises ValueError naming the characters that the vocabulary lacks; pieces lack none."""
        by = Characters(self.tokens.alphabet) if isinstance(self.tokens, Characters) else self.tokens
        return by.ids(text).tolist()

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids; the end of a document shows as <|endoftext|>."""
        return self.tokens.decode([int(i) for i in ids])

    def token_label(self, id: int) -> str:
        """A short name of one token for the axis of a map: spaces as ␣, line ends as ↵, never empty."""
        return self.decode([id]).replace(" ", "␣").replace("\n", "↵").replace("\t", "⇥")


def split(name: str, text: str) -> tuple[str, str]:
    """Training and validation part of a shipped corpus.

    Shakespeare: the last of the nine plays, The Tempest, is held out whole. State of the Union: the addresses from 2010
    on. Tiny Shakespeare: the last tenth, cut where nanoGPT cuts it.
    """
    if name == "shakespeare":
        cut = text.index("THE TEMPEST\n\nby William Shakespeare")
    else:
        cut = text.index("= 2010 ") if name == "sotu" else int(len(text) * 0.9)
    return text[:cut], text[cut:]


def read(name: str) -> str:
    """The whole text of a shipped corpus. Raises DataError when its file is missing or damaged."""
    path = path_of(FILE[name])
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()


def shipped(name: str, tokens: str) -> TextTask:
    """The task on shakespeare, sotu or tinyshakespeare. Raises DataError when a file is missing or damaged."""
    return _shipped(name, tokens, path_of(FILE[name]))


@lru_cache(maxsize=6)
def _shipped(name: str, tokens: str, path: Path) -> TextTask:  # the path, because $QKVLAB_DATA may change
    train, valid = split(name, read(name))
    by = Characters("".join(sorted(set(train)))) if tokens == "char" else pieces(tokens)
    ids = by.ids(valid)
    return TextTask(name, by, by.ids(train), ids, len(valid) / len(ids))


def own(data: str, tokens: str, room: int = ROOM) -> TextTask:
    """The task on text of your own (see `sources.documents` for what `data` may be).

    The first `room` characters are read at once. A tenth of them, from the beginning, is the validation part, rounded
    up to whole documents where that keeps it below a fifth. The rest trains; of a corpus with more than `room`
    characters, the held part moves on as ids are drawn, and at its end starts again behind the validation part.

    Characters are those of the training part that is held. Any other, in validation or later, becomes one id for
    "unknown" and is not scored as a target. Raises DataError when there is no text, or it cannot be read.
    """
    pieces_of = documents(data)
    rest, held, count = pieces_of(), [], 0
    for piece in rest:
        held.append(piece)
        count += len(piece[0])
        if count >= room:
            break
    if count < 200:
        raise DataError(f"{data} holds {count} characters of text; a training and a validation part need 200 or more")
    cut = _cut(held, count)
    by: Characters | Pieces
    if tokens == "char":
        by = Characters("".join(sorted(set().union(*(text for text, _ in _behind(held, cut))))), open=True)
    else:
        by = pieces(tokens, documents=True)

    def ids(parts: Iterable[Piece]) -> Iterator[np.ndarray]:
        for text, ends in parts:
            yield np.append(by.ids(text), by.end) if ends else by.ids(text)

    valid, train = (np.concatenate(list(ids(part))) for part in (_before(held, cut), _behind(held, cut)))
    stream = None
    if count >= room and (following := next(rest, None)) is not None:
        again = chain.from_iterable(_behind(pieces_of(), cut) for _ in iter(int, 1))  # for ever
        stream = ids(chain([following], rest, again))
    return TextTask(data, by, train, valid, cut / len(valid), stream)


def _cut(held: list[Piece], count: int) -> int:
    """How many characters validate: a tenth, or up to the end of a document that comes before a fifth."""
    place = 0
    for text, ends in held:
        place += len(text)
        if ends and count // 10 <= place <= count // 5:
            return place
    return count // 10


def _before(parts: Iterable[Piece], cut: int) -> Iterator[Piece]:
    for text, ends in parts:
        yield text[:cut], ends and len(text) <= cut
        cut -= len(text)
        if cut <= 0:
            return


def _behind(parts: Iterable[Piece], cut: int) -> Iterator[Piece]:
    for text, ends in parts:
        if len(text) > cut:
            yield text[cut:], ends
        cut = max(0, cut - len(text))

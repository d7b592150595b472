import hashlib
import json
import re
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.tasks import TOKENS, load, sources, text

SHIPPED = ("shakespeare", "sotu")


# ---------------------------------------------------------------------------------------------------- splits
def test_shakespeare_holds_out_one_whole_play():
    whole = text.read("shakespeare")
    train, valid = text.split("shakespeare", whole)
    assert train + valid == whole and (len(train), len(valid)) == (1_158_413, 98_308)
    assert train.count("by William Shakespeare") == 8 and valid.count("by William Shakespeare") == 1
    assert valid.startswith("THE TEMPEST") and "PROSPERO" not in train and "PROSPERO" in valid


def test_the_union_is_held_out_from_2010_on():
    whole = text.read("sotu")
    train, valid = text.split("sotu", whole)
    assert train + valid == whole and (len(train), len(valid)) == (4_872_185, 450_058)
    years = [[int(y) for y in re.findall(r"^= (\d{4}) ", part, re.M)] for part in (train, valid)]
    assert len(years[0]) + len(years[1]) == 123
    assert max(years[0]) < 2010 <= min(years[1]) and valid.startswith("= 2010 Barack Obama =")


def test_tiny_shakespeare_is_cut_where_nanogpt_cuts_it():
    parts = text.split("tinyshakespeare", "".join(map(chr, range(1000))) * 1115 + "x" * 394)  # its length
    assert [len(part) for part in parts] == [1_003_854, 111_540]  # nanoGPT's data/shakespeare_char/readme


@pytest.mark.parametrize("name", SHIPPED)
def test_windows_lie_where_they_should(name):
    task = load(name)
    train, valid = text.split(name, text.read(name))
    x, y = task.batch(np.random.default_rng(0), 12, 128)
    for row, target in zip(x, y, strict=True):
        assert task.decode(row) + task.decode(target[-1:]) in train
    x, y = task.validation(128, 10**9)
    assert len(x) == (len(valid) - 1) // 128
    assert task.decode(x.flatten()) == valid[: x.numel()]  # in order, without a gap or an overlap
    assert task.decode(y.flatten()) == valid[1 : y.numel() + 1]


@settings(deadline=None, max_examples=30)
@given(tokens=st.sampled_from(TOKENS), context=st.integers(1, 300), size=st.integers(1, 20), seed=st.integers(0, 2**32))
def test_y_is_x_one_further(tokens, context, size, seed):
    task = load("shakespeare", tokens=tokens)
    x, y = task.batch(np.random.default_rng(seed), size, context)
    assert x.shape == y.shape == (size, context) and x.dtype == y.dtype == torch.int64
    assert torch.equal(x[:, 1:], y[:, :-1]) and x.min() >= 0 and max(x.max(), y.max()) < task.inputs == task.outputs
    again = task.batch(np.random.default_rng(seed), size, context)
    assert torch.equal(x, again[0]) and torch.equal(y, again[1])
    vx, vy = task.validation(context, size)
    assert vx.shape == (size, context) and torch.equal(vx[:, 1:], vy[:, :-1])
    assert torch.equal(vx, task.validation(context, size)[0])


def test_a_limit_spreads_over_the_whole_part():
    task = load("shakespeare")
    every, some = task.validation(64, 10**9)[0], task.validation(64, 10)[0]
    where = [int((every == row).all(1).nonzero()[0, 0]) for row in some]
    assert len(set(where)) == 10 and where[0] == 0 and where[-1] >= 0.85 * len(every)


def test_both_ends_of_the_training_part_are_drawn():
    by = text.Characters("abcdef")
    task = text.TextTask("six", by, by.ids("abcdef"), by.ids("ab"), 1.0)
    x, y = task.batch(np.random.default_rng(0), 200, 4)
    assert {task.decode(r) for r in x} == {"abcd", "bcde"} and {task.decode(r) for r in y} == {"bcde", "cdef"}
    assert task.batch(np.random.default_rng(0), 1, 5)[0].shape == (1, 5)
    with pytest.raises(ValueError, match=r"context=6.*six.*at most 5"):
        task.batch(np.random.default_rng(0), 1, 6)


def test_padding_is_never_scored():
    by = text.Characters("abcdef")
    task = text.TextTask("short", by, by.ids("abcdef"), by.ids("fed"), 1.0)
    x, y = task.validation(5, 8)
    assert x.tolist() == [[5, 4, 0, 0, 0]] and y.tolist() == [[4, 3, -100, -100, -100]]


# ---------------------------------------------------------------------------------------------------- tokenisers
@settings(deadline=None, max_examples=60)
@given(st.sampled_from(("bpe512", "bpe1024", "gpt2")), st.text(max_size=80))
def test_pieces_give_every_text_back(tokens, words):
    task = load("shakespeare", tokens=tokens)
    assert task.decode(task.encode(words)) == words


def test_characters_give_their_texts_back_and_name_a_stranger():
    task = load("shakespeare")
    assert (task.inputs, task.unit, task.chars_per_token) == (78, "nats per character", 1.0)
    line = "O brave new world,\nThat has such people in't!"
    assert task.decode(task.encode(line)) == line and task.encode("") == []
    with pytest.raises(ValueError) as error:
        task.encode("caf\u00e9 \U0001f600 9")
    for part in ("'é' (U+00E9)", "U+1F600", "'9' (U+0039)", "78", "abc"):
        assert part in str(error.value)
    assert [task.token_label(i) for i in task.encode("a \n")] == ["a", "␣", "↵"]


def test_gpt2_is_openais():
    """The vocabulary, written as OpenAI's encoder.json, has the sha256 that tiktoken hard-codes for that file."""
    ranks = text.gpt2_ranks(sources.path_of("gpt2_vocab.bpe").read_text("utf-8"))
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbol = {b: chr(b) for b in plain} | {
        b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in plain)
    }
    listed = {"".join(symbol[b] for b in piece): rank for piece, rank in ranks.items()} | {"<|endoftext|>": 50256}
    digest = hashlib.sha256(json.dumps(listed).encode()).hexdigest()
    assert digest == "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"


def test_gpt2_splits_words_as_tiktokens_own_pattern():
    import tiktoken
    from tiktoken_ext.openai_public import r50k_pat_str

    task = load("shakespeare", tokens="gpt2")
    assert task.inputs == 50_257 and task.encode("Hello world") == [15496, 995]
    assert task.encode("<|endoftext|>") != [50256]  # a prompt cannot smuggle it in
    own = task.tokens.encoding
    theirs = tiktoken.Encoding("x", pat_str=r50k_pat_str, mergeable_ranks=own._mergeable_ranks, special_tokens={})
    sample = text.read("sotu")[:300_000] + "  \n\n\t I'll don't 12,000 — café\u2003日本 \n "
    assert own.encode_ordinary(sample) == theirs.encode_ordinary(sample)


def test_retraining_gives_the_shipped_pieces_byte_for_byte():
    train, _ = text.split("shakespeare", text.read("shakespeare"))
    made = text.write_ranks(text.train_bpe(train, 256 + 1024))
    assert made.encode() == sources.path_of("bpe1024.tiktoken").read_bytes()
    assert load("text", tokens="bpe512").inputs == 768 and load("text", tokens="bpe1024").inputs == 1280


@settings(deadline=None, max_examples=40)
@given(st.text("ab c", min_size=1, max_size=60), st.integers(257, 266))
def test_merges_are_those_of_the_definition(words, size):
    """Against the definition, recounted from nothing for every merge."""
    import regex

    parts = [[bytes([b]) for b in word.encode()] for word in regex.findall(text.PATTERN, words)]
    order = [bytes([b]) for b in range(256)]
    while len(order) < size:
        count: dict = {}
        for part in parts:
            for pair in pairwise(part):
                count[pair] = count.get(pair, 0) + 1
        if not count:
            break
        a, b = min(count, key=lambda p: (-count[p], order.index(p[0]), order.index(p[1])))
        order.append(a + b)
        for part in parts:
            i = 0
            while i < len(part) - 1:
                if (part[i], part[i + 1]) == (a, b):
                    part[i : i + 2] = [a + b]
                i += 1
    assert list(text.train_bpe(words, len(order))) == order


def test_pieces_compress_as_hugging_faces_trainer_does():
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    train, valid = text.split("shakespeare", text.read("shakespeare"))
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    theirs.train_from_iterator(
        [train], trainers.BpeTrainer(vocab_size=768, initial_alphabet=alphabet, show_progress=False)
    )
    ours = load("text", tokens="bpe512")
    assert abs(len(ours._valid) / len(theirs.encode(valid).ids) - 1) < 0.002  # equal counts are broken differently
    assert ours.chars_per_token == len(valid) / len(ours._valid)

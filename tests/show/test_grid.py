"""The grid as Python sees it: frames as bytes, shapes that are refused by name, what a page may choose."""

import numpy as np
import pytest

from qkvlab.show.grid import AttentionGrid, face


def maps(seed, T=5, L=2, H=3):
    draw = np.random.default_rng(seed).random((L, H, T, T)).astype(np.float32)
    return draw / draw.sum(-1, keepdims=True)


@pytest.fixture
def grid(monkeypatch):
    grid = AttentionGrid()
    grid.messages = []
    monkeypatch.setattr(grid, "send", lambda content, buffers=None: grid.messages.append((content, buffers)))
    grid.begin([face("qkv"), face("identity-q"), face("tie-kv")])
    return grid


def test_a_frame_comes_back_from_its_bytes(grid):
    a, b = maps(0), maps(1)
    grid.show([a, b], list("To be"), symmetry=[np.zeros((2, 3)), np.ones((2, 3))], step=7)
    [(about, [data])] = grid.messages
    np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(about["shape"] + [5]), np.stack([a, b]))
    assert about["tokens"] == list("To be") and about["step"] == 7 and about["shown"] == [0, 1]
    assert about["symmetry"][1] == [[1.0] * 3] * 2
    assert grid.frame == b"" and grid.sent == len(data)


def test_a_kept_frame_waits_for_a_later_view(grid):
    grid.show([maps(0), maps(1)], list("To be"), keep=True)
    state = grid.get_state()
    assert not grid.messages and state["about"]["shape"] == [2, 2, 3, 5]
    np.testing.assert_array_equal(np.frombuffer(state["frame"], np.float32), np.stack([maps(0), maps(1)]).ravel())


def test_other_models_clear_the_frame(grid):
    grid.show([maps(0), maps(1)], list("To be"), keep=True)
    epoch = grid.epoch
    grid.begin([face("qkv")])
    assert grid.frame == b"" and grid.about == {} and grid.epoch == epoch + 1
    assert grid.shown() == [0]


def test_the_reader_chooses(grid):
    told = []
    grid.on_choose = lambda: told.append(grid.shown())
    grid._receive(grid, {"command": "choose", "side": "left", "index": 2}, [])
    grid._receive(grid, {"command": "choose", "side": "right", "index": -1}, [])
    assert told == [[2, 1], [2]]
    for index in (3, -1, "0", None, 1.5):
        grid._receive(grid, {"command": "choose", "side": "left", "index": index}, [])
    grid._receive(grid, {"command": "choose", "side": "above", "index": 0}, [])
    grid._receive(grid, "choose", [])
    assert told == [[2, 1], [2]]
    grid.begin([face("qkv"), face("identity-q"), face("tie-kv")])
    assert grid.left == 2  # what was chosen stays


@pytest.mark.parametrize(
    ("bad", "tokens", "words"),
    [
        ([maps(0), maps(1)], list("Too many"), "8 tokens"),
        ([maps(0), maps(1, T=4)], list("To be"), "allowed is one shape"),
        ([maps(0)[0], maps(1)[0]], list("To be"), "allowed is one shape"),
        ([maps(0)], list("To be"), "2 models are shown"),
    ],
)
def test_wrong_shapes_are_named(grid, bad, tokens, words):
    with pytest.raises(ValueError, match=words):
        grid.show(bad, tokens)


def test_a_face_is_the_variants():
    assert face("identity-q")["label"] == "W_Q=I" and face("identity-q")["colour"] == "#0072B2"
    assert "<svg" in face("tie-kv")["badge"] and face("qkv", "mine")["label"] == "mine"

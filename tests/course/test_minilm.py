"""The trained model of the labs, against the maps that it computed itself and against torch."""

import numpy as np
import torch

from qkvlab.course import minilm


def test_shapes_and_the_one_appended_to_the_stream():
    model = minilm.load()
    assert model.W_Q.shape == model.W_K.shape == model.W_V.shape == (6, 12, 385, 32)
    assert model.W_O.shape == (6, 12, 32, 384)
    for sentence in model.sentences:
        assert sentence.x.shape == (6, len(sentence.tokens), 385)
        assert (sentence.x[..., -1] == 1).all()
        np.testing.assert_allclose(sentence.maps.sum(-1), 1, atol=2e-3)  # half precision


def test_every_map_of_the_model_comes_out_again_up_to_half_precision():
    model = minilm.load()
    for sentence in model.sentences:
        for layer in range(6):
            q, k = (torch.from_numpy(sentence.x[layer] @ w[layer]) for w in (model.W_Q, model.W_K))
            maps = torch.softmax(q @ k.mT / 32**0.5, -1).numpy()
            assert np.abs(maps - sentence.maps[layer]).max() < 7e-4


def test_the_head_of_the_opening_figure_looks_at_the_word_before():
    for sentence in minilm.load().sentences:
        assert np.diagonal(sentence.maps[0, 2], -1).mean() > 0.95

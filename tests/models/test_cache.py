"""The cache changes nothing but the work, and holds exactly what the variant needs."""

import pytest
import torch

from qkvlab.models.cache import KVCache, generate
from qkvlab.models.transformer import GPT, ModelConfig
from qkvlab.models.variants import VARIANTS, variant

CAUSAL = [*VARIANTS, "qkv+gqa2", "qkv+mqa", "tie-kv+gqa2", "tie-kv+mqa", "identity-q+mqa", "identity-q+tie-kv+gqa2"]


def model_of(slug, **options):
    options = {"layers": 2, "heads": 4, "width": 16, "context": 14, "init_std": 0.6} | options
    return GPT(ModelConfig(variant=slug, **options), 23)


def ids_of(*shape):
    return torch.randint(23, shape, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("options", [{}, {"positions": "rope"}, {"positions": "rope", "qk_norm": True, "bias": True}])
@pytest.mark.parametrize("slug", CAUSAL)
def test_cached_logits_and_storage(slug, options):
    """Prompt, then a few tokens at once, then one by one: the logits of one pass, and the promised numbers stored."""
    model, ids = model_of(slug, **options).double(), ids_of(3, 12)
    cache = KVCache(model)
    pieces = []
    for start, end in [(0, 5), (5, 8), (8, 10), (10, 11), (11, 12)]:
        pieces.append(model(ids[:, start:end], cache))
        assert cache.length == end
        assert cache.numbers() == 3 * end * 2 * variant(slug).cache_numbers(16, 4)
    torch.testing.assert_close(torch.cat(pieces, 1), model(ids), rtol=0, atol=1e-11)


@pytest.mark.parametrize("positions", ["learned", "rope", "none"])
@pytest.mark.parametrize("slug", CAUSAL)
def test_generation_with_a_cache_gives_the_same_tokens_past_the_context_too(slug, positions):
    model, ids = model_of(slug, positions=positions, shared_layers=slug == "tie-kv"), ids_of(2, 4)
    for temperature in (0.0, 1.0):
        draws = [torch.Generator().manual_seed(7) for _ in range(2)]
        cached = generate(model, ids, 16, temperature, draws[0], cache=True)  # 4 + 16 tokens, a context of 14
        assert torch.equal(cached, generate(model, ids, 16, temperature, draws[1], cache=False))
        assert cached.shape == (2, 20) and torch.equal(cached[:, :4], ids)


def test_each_step_reads_one_token_until_the_window_is_full():
    model, lengths = model_of("qkv"), []
    model.register_forward_pre_hook(lambda _, inputs: lengths.append(inputs[0].shape[1]))
    generate(model, ids_of(1, 4), 13)
    assert lengths == [4] + 10 * [1] + 2 * [14]


def test_greedy_generation_is_the_likeliest_token_of_the_last_context():
    model, ids = model_of("qkv"), ids_of(1, 10)
    out = generate(model, ids, 8, temperature=0)
    for i in range(10, 18):
        assert out[0, i] == model(out[:, max(0, i - 14) : i])[0, -1].argmax()


def test_keys_are_stored_before_norm_and_rotation():
    model, ids = model_of("tie-kv", positions="rope", qk_norm=True), ids_of(1, 6)
    cache = KVCache(model)
    model(ids, cache)
    block = model.blocks[0]
    plain = block.attention.W_K(block.norm_1(model.embedded(ids)))
    torch.testing.assert_close(cache.layers[0].keys.transpose(1, 2).flatten(2), plain)
    assert cache.layers[0].values is None


def test_generation_draws_from_its_own_generator_and_leaves_the_model_as_it_was():
    model, ids = model_of("qkv", dropout=0.5), ids_of(1, 3)
    assert torch.equal(generate(model, ids, 8), generate(model, ids, 8)) and model.training
    other = generate(model, ids, 8, generator=torch.Generator().manual_seed(1))
    assert not torch.equal(other, generate(model, ids, 8))


def test_sampling_follows_the_softmax_at_the_temperature():
    model, ids = model_of("qkv", init_std=0.3), ids_of(1, 5)
    drawn = generate(model, ids.expand(20_000, -1), 1, temperature=2.0)[:, -1]
    wanted = (model(ids)[0, -1].detach() / 2).softmax(-1)
    assert float((drawn.bincount(minlength=23) / 20_000 - wanted).abs().max()) < 0.015


@pytest.mark.parametrize("temperature", [1e-6, 1e-30, 1e-45, 1e-320])
def test_a_tiny_temperature_takes_the_likeliest_token(temperature):
    model, ids = model_of("qkv", init_std=0.3), ids_of(2, 5)
    assert torch.equal(generate(model, ids, 4, temperature), generate(model, ids, 4, 0))


def test_wrong_requests_are_refused_by_name():
    model = model_of("qkv")
    with pytest.raises(ValueError, match="at least one token"):
        generate(model, ids_of(1, 0), 3)
    with pytest.raises(ValueError, match="temperature=-1"):
        generate(model, ids_of(1, 2), 3, temperature=-1)
    with pytest.raises(ValueError, match="n=-1: allowed"):
        generate(model, ids_of(1, 2), -1)
    lost = model_of("qkv")
    torch.nn.init.constant_(lost.embed.weight, float("nan"))
    for temperature in (0, 1):
        with pytest.raises(ValueError, match="not finite"):
            generate(lost, ids_of(1, 2), 1, temperature)
    with pytest.raises(ValueError, match="causal=True"):
        KVCache(model_of("qkv", causal=False))
    cache = KVCache(model)
    model(ids_of(1, 14), cache)
    with pytest.raises(ValueError, match="15 tokens, but context=14"):
        model(ids_of(1, 1), cache)

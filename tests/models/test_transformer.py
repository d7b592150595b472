"""GPT, ViT and Encoder: the papers' parameter counts, initial values, dropout, causality, and what is refused."""

import threading

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from qkvlab.models.attention import Attention
from qkvlab.models.cache import generate
from qkvlab.models.transformer import GPT, Encoder, ModelConfig, ViT, count_parameters, drop
from qkvlab.models.variants import VARIANTS, variant

CAUSAL = [*VARIANTS, "qkv+gqa2", "tie-kv+mqa", "identity-q+mqa", "identity-q+tie-kv+gqa2"]


def tiny(**options):
    return ModelConfig(**{"layers": 2, "heads": 4, "width": 16, "context": 12} | options)


def tokens(*shape, vocab=11, seed=0):
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))


def on_meta(vocab, **options):
    with torch.device("meta"):
        return GPT(ModelConfig(**options), vocab)


# --- the papers' models, to the unit, without a byte of memory ----------------------------------------------------

GPT2 = {"layers": 12, "heads": 12, "width": 768, "context": 1024}
B300 = {"layers": 20, "heads": 16, "width": 1024, "context": 2048, "bias": True}
B1200 = {"layers": 22, "heads": 32, "width": 2048, "context": 2048, "bias": True}


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ({}, 84_953_856),
        ({"variant": "identity-q"}, 77_875_968),
        ({"variant": "identity-q", "mlp": 4.5}, 84_953_856),
        ({"mlp": 3.5}, 77_875_968),
        ({"width": 744}, 79_727_784),
    ],
)
def test_paper_a_counts_without_embeddings(options, count):
    assert count_parameters(on_meta(50304, **(GPT2 | options))) == count


def test_paper_a_totals():
    totals = [count_parameters(on_meta(50304, **GPT2, variant=v), embeddings=True) for v in ("qkv", "identity-q")]
    assert [round(t / 1e6, 1) for t in totals] == [124.4, 117.3]


@pytest.mark.parametrize(
    ("size", "slug", "count"),
    [
        (B300, "qkv", 305_534_976),
        (B300, "tie-kv", 284_542_976),
        (B300, "tie-qk", 284_542_976),
        (B300, "tie-qkv", 263_550_976),
        (B1200, "qkv", 1_215_102_976),
        (B1200, "tie-kv", 1_122_783_232),
    ],
)
def test_paper_b_counts(size, slug, count):
    assert count_parameters(on_meta(50304, **size, variant=slug), embeddings=True) == count


@pytest.mark.parametrize(
    ("size", "slug", "millions"),
    [
        (B300, "qkv+gqa4", 274.0),
        (B300, "qkv+mqa", 266.2),
        (B300, "tie-kv+gqa4", 268.8),
        (B300, "tie-kv+mqa", 264.9),
        (B1200, "qkv+gqa8", 1076.6),
        (B1200, "qkv+mqa", 1036.2),
        (B1200, "tie-kv+gqa8", 1053.5),
        (B1200, "tie-kv+mqa", 1033.3),
    ],
)
def test_paper_b_counts_with_shared_heads(size, slug, millions):
    model = on_meta(50304, **size, variant=slug)
    assert round(count_parameters(model, embeddings=True) / 1e6, 1) == millions
    attention = sum(p.numel() for name, p in model.named_parameters() if ".attention." in name)
    assert attention == size["layers"] * variant(slug).parameters(size["width"], size["heads"], bias=True)


@pytest.mark.parametrize(
    ("slug", "millions"),
    [("qkv", 83.97), ("tie-kv", 62.98), ("tie-qkv", 41.98), ("qkv+gqa4", 52.48), ("tie-kv+mqa", 43.30)],
)
def test_paper_b_attention_parameters(slug, millions):
    assert round(20 * variant(slug).parameters(1024, 16, bias=True) / 1e6, 2) == millions


def test_count_of_options():
    plain, width = count_parameters(GPT(tiny(), 11), True), 16
    assert count_parameters(GPT(tiny(tied=False), 11), True) == plain + 11 * width
    assert count_parameters(GPT(tiny(positions="rope"), 11), True) == plain - 12 * width
    assert count_parameters(GPT(tiny(norm="rms", norm_gain=False), 11), True) == plain - 5 * width
    assert count_parameters(GPT(tiny(norm="none"), 11)) == 2 * (12 * width**2)
    assert count_parameters(GPT(tiny(shared_layers=True), 11)) == 12 * width**2 + 3 * width
    vit = count_parameters(ViT(tiny(causal=False)), True) - count_parameters(ViT(tiny(causal=False)))
    assert vit == 49 * width + 17 * width + width + 10 * width  # patches, positions, CLS, read-out


# --- initial values -----------------------------------------------------------------------------------------------


def test_equal_names_have_equal_values_in_every_variant_and_seeds_differ():
    reference = dict(GPT(tiny(), 11).named_parameters())
    for slug in VARIANTS:
        for name, p in GPT(tiny(variant=slug), 11).named_parameters():
            assert torch.equal(p, reference[name]), (slug, name)
    other = GPT(tiny(), 11)
    other.init_weights(1)
    moved = {name for name, p in other.named_parameters() if not torch.equal(p, reference[name])}
    assert moved == {name for name in reference if "norm" not in name}


def test_no_two_matrices_start_alike():
    first_rows = [p.detach().flatten()[:16] for p in GPT(tiny(tied=False), 11).parameters() if p.ndim == 2]
    alike = torch.corrcoef(torch.stack(first_rows)) > 0.95
    assert torch.equal(alike, torch.eye(len(first_rows), dtype=torch.bool))


def test_normal_initialisation_has_the_stated_spread():
    model = GPT(ModelConfig(width=256, layers=8, bias=True), 300)
    spread = {name: float(p.detach().std()) for name, p in model.named_parameters() if p.ndim == 2}
    std = 0.02 * 768**0.5 / 256**0.5
    for name, value in spread.items():
        wanted = std / 4 if ".W_O" in name or ".W_2" in name else std
        assert abs(value / wanted - 1) < 0.03, name
    assert all(float(p.detach().abs().max()) == 0 for name, p in model.named_parameters() if name.endswith("bias"))
    flat = GPT(ModelConfig(width=256, layers=8, init_std=0.02, init_depth_scaled=False), 300)
    assert abs(flat.blocks[3].mlp.W_2.weight.std().item() / 0.02 - 1) < 0.03


def test_uniform_initialisation_starts_silent():
    model = GPT(ModelConfig(init="uniform", tied=False, bias=True), 65)
    ids = tokens(2, 64, vocab=65)
    assert model(ids).abs().max().item() == 0  # uniform over the vocabulary, whatever the input
    for block in model.blocks:
        assert block.attention.W_O.weight.abs().max().item() == block.mlp.W_2.weight.abs().max().item() == 0
        assert 0.98 < block.attention.W_Q.weight.abs().max().item() / (3 / 128) ** 0.5 <= 1
    assert abs(model.embed.weight.std().item() - 1) < 0.02
    tied = GPT(ModelConfig(init="uniform"), 65)
    assert 0.98 < tied.embed.weight.abs().max().item() / (3 / 128) ** 0.5 <= 1


def test_from_meta_to_memory_equals_a_direct_build():
    options = tiny(positions="rope", qk_norm=True)
    with torch.device("meta"):
        model = GPT(options, 11)
    assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))
    model.to_empty(device="cpu").init_weights(0)
    assert torch.equal(model(tokens(2, 9)), GPT(options, 11)(tokens(2, 9)))


@pytest.mark.parametrize("slug", CAUSAL)
def test_weights_survive_safetensors(slug, tmp_path):
    model = GPT(tiny(variant=slug), 11)
    save_file(model.state_dict(), tmp_path / "w.safetensors")  # refuses aliased tensors
    other = GPT(tiny(variant=slug), 11)
    other.init_weights(5)
    other.load_state_dict(load_file(tmp_path / "w.safetensors"))
    assert torch.equal(model(tokens(2, 5)), other(tokens(2, 5)))


# --- randomness ---------------------------------------------------------------------------------------------------


def losses(seed, steps=4):
    model = GPT(tiny(dropout=0.3), 11)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    out = []
    for step in range(steps):
        model.generator.manual_seed(1000 * seed + step)
        loss = F.cross_entropy(model(tokens(4, 12, seed=step)).flatten(0, 1), tokens(48, seed=step + 50))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        out.append(loss.item())
    return out


def test_nothing_touches_the_global_generator_and_its_state_changes_nothing():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = losses(0)
    model = GPT(tiny(dropout=0.3, positions="rope"), 11)
    model.maps(tokens(1, 5))
    generate(model, tokens(1, 5), 4)
    ViT(tiny(causal=False, dropout=0.1, variant="qkv+pos2d"))(torch.zeros(1, 1, 28, 28))
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert losses(0) == first != losses(1)


def test_two_trainings_in_two_threads_have_their_solo_losses():
    solo, together = [losses(0, 12), losses(1, 12)], [[], []]
    threads = [threading.Thread(target=lambda i=i: together[i].extend(losses(i, 12))) for i in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == solo


def test_dropout_keeps_the_mean_and_is_off_outside_training():
    model, ids = GPT(tiny(dropout=0.5, skips="none", layers=1), 11), tokens(1, 8)
    model.generator.manual_seed(0)
    a, b = model(ids), model(ids)
    assert not torch.equal(a, b)  # masks go on, they do not repeat
    model.generator.manual_seed(0)
    assert torch.equal(model(ids), a)
    clean = GPT(tiny(skips="none", layers=1), 11)
    assert torch.equal(model.eval()(ids), clean(ids)) and torch.equal(model.maps(ids)[0], clean.maps(ids)[0])
    seen = []
    model.train().blocks[0].register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model.generator.manual_seed(3)
    model(ids)
    assert torch.equal(seen[0], drop(model.embedded(ids), 0.5, torch.Generator().manual_seed(3)))
    dropped = drop(torch.ones(100_000), 0.3, torch.Generator().manual_seed(0))
    assert abs(float(dropped.mean()) - 1) < 0.01 and abs(float((dropped == 0).float().mean()) - 0.3) < 0.01


# --- behaviour ----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from(CAUSAL),
    st.sampled_from(["learned", "rope", "none"]),
    st.sampled_from(["both", "attention", "mlp", "none"]),
    st.sampled_from(["layer", "rms", "none"]),
    st.integers(1, 9),
)
def test_a_later_token_never_changes_an_earlier_logit(slug, positions, skips, norm, t):
    model = GPT(tiny(variant=slug, positions=positions, skips=skips, norm=norm, shared_layers=t % 2 == 0), 11).double()
    ids = tokens(2, 10)
    other = ids.clone()
    other[:, t:] = (ids[:, t:] + 1) % 11
    torch.testing.assert_close(model(ids)[:, :t], model(other)[:, :t], rtol=0, atol=1e-14)
    assert not torch.allclose(model(ids)[:, t:], model(other)[:, t:], atol=1e-9)


class Sharpened(Attention):
    def place(self, q, k):
        q, k = super().place(q, k)
        return 3 * q, k


def models_of(slug, **options):
    causal = "pos2d" not in slug
    for scale in (3.0, 1.0):
        config = tiny(variant=slug, logit_scale=scale, causal=causal, init_std=0.7, **options)
        model = GPT(config, 11) if causal else Encoder(config, 11, 11)
        if scale == 1.0:
            for block in model.blocks:
                block.attention.__class__ = Sharpened
        yield model.double()


@pytest.mark.parametrize("positions", ["learned", "rope"])
@pytest.mark.parametrize("slug", [*CAUSAL, "tie-qk+pos2d", "tie-kv+gqa2+pos2d"])
def test_logit_scale_is_effective_in_models_maps_and_generation(slug, positions):
    """logit_scale=3 is three times the queries, in the forward pass, the maps, and with and without a cache."""
    scaled, sharpened = models_of(slug, positions=positions)
    ids = tokens(2, 6)
    torch.testing.assert_close(scaled(ids), sharpened(ids), rtol=0, atol=1e-10)
    for a, b in zip(scaled.maps(ids), sharpened.maps(ids), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)
    if scaled.config.causal:
        for cache in (True, False):
            assert torch.equal(generate(scaled, ids, 6, cache=cache), generate(sharpened, ids, 6, cache=cache))


def test_maps_are_those_of_the_forward_pass():
    """Each layer's map, applied to what that layer saw, is what that layer's attention returned."""
    model, ids = GPT(tiny(variant="identity-q+tie-kv", positions="rope", layers=3), 11), tokens(2, 9)
    seen = []
    for block in model.blocks:
        block.attention.register_forward_hook(lambda module, inputs, y: seen.append((module, inputs[0], y)))
    model(ids)
    for A, (att, x, y) in zip(model.maps(ids), seen[:3], strict=True):
        v = att.project(x)[2]
        torch.testing.assert_close(att.W_O((A @ v).transpose(1, 2).flatten(2)), y)


def test_shared_layers_is_one_block_used_again():
    shared, twice = GPT(tiny(shared_layers=True, layers=3), 11), GPT(tiny(layers=3), 11)
    for block in twice.blocks:
        block.load_state_dict(shared.blocks[0].state_dict())
    assert len(shared.blocks) == 1 and len(shared.maps(tokens(1, 4))) == 3
    for own, alias in (("embed", "embed"), ("position", "position"), ("norm_f", "norm_f")):
        getattr(twice, own).load_state_dict(getattr(shared, alias).state_dict())
    assert torch.equal(shared(tokens(2, 8)), twice(tokens(2, 8)))


def test_softcap_bounds_the_logits():
    capped, free = GPT(tiny(softcap=2.0, init_std=2.0), 11), GPT(tiny(init_std=2.0), 11)
    z, raw = capped(tokens(2, 8)), free(tokens(2, 8))
    torch.testing.assert_close(z, 2 * torch.tanh(raw / 2))
    assert raw.abs().max().item() > 2 >= z.abs().max().item()


def test_vit_cuts_patches_as_a_strided_convolution_does():
    config = tiny(causal=False, positions="none", bias=True)
    model = ViT(config, image=28, patch=7, channels=3, classes=5, pool="mean")
    x = torch.randn(2, 3, 28, 28, generator=torch.Generator().manual_seed(0))
    patches = F.conv2d(x, model.embed.weight.view(16, 3, 7, 7), model.embed.bias, stride=7).flatten(2).mT
    torch.testing.assert_close(model.embedded(x), patches, rtol=1e-4, atol=1e-5)
    assert model(x).shape == (2, 5) and model.maps(x)[0].shape == (2, 4, 16, 16)
    cls = ViT(config, image=28, patch=4)
    assert cls.maps(x[:, :1])[1].shape == (2, 4, 50, 50) and cls.config.context == 50


@settings(deadline=None, max_examples=20)
@given(st.permutations(range(7)), st.sampled_from([*VARIANTS, "qkv+gqa2"]))
def test_a_set_without_positions_is_permutation_equivariant(order, slug):
    model, ids = Encoder(tiny(causal=False, positions="none", variant=slug), 11, 3).double(), tokens(2, 7)
    torch.testing.assert_close(model(ids)[:, order], model(ids[:, order]), rtol=0, atol=1e-13)
    if list(order) != sorted(order):
        listed = Encoder(tiny(causal=False, variant=slug), 11, 3).double()
        assert not torch.allclose(listed(ids)[:, order], listed(ids[:, order]), atol=1e-9)


def test_an_encoder_reads_features_as_it_reads_ids():
    model, ids = Encoder(tiny(causal=False), 11, 3).double(), tokens(2, 7)
    torch.testing.assert_close(model(ids), model(F.one_hot(ids, 11).double()))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"norm": "batch"}, "norm='batch': allowed are layer, rms, none"),
        ({"activation": "swish"}, "gelu, relu, relu2"),
        ({"skips": "all"}, "both, attention, mlp, none"),
        ({"positions": "alibi"}, "learned, rope, none"),
        ({"init": "zeros"}, "normal, uniform"),
        ({"layers": 0}, "layers=0"),
        ({"width": 16.0}, r"width=16\.0"),
        ({"width": 18}, "width=18, heads=4"),
        ({"positions": "rope", "width": 12}, "d_h=3 must be even"),
        ({"variant": "tie-qk+pos2d"}, "causal=False only"),
        ({"variant": "tie-qk+gqa2"}, "Q=K"),
        ({"variant": "qkv+gqa3"}, "allowed are 1, 2, 4"),
        ({"variant": "Q-K=V"}, "identity-q"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"mlp": 0}, "mlp=0"),
        ({"mlp": 0.01}, "no hidden unit"),
        ({"mlp": 1e308}, "mlp=1e\\+308: at width=16"),
        ({"mlp": "4"}, "mlp='4': allowed is a number"),
        ({"variant": 5}, "variant=5: allowed is a word"),
        ({"causal": "no"}, "causal='no': allowed is True or False"),
        ({"init_std": "x"}, "init_std='x': allowed is a number or None"),
        ({"width": 10**30}, "width=10*: allowed is a whole number from 1 to 4194304"),
        ({"layers": 10**6}, "layers=1000000: allowed is a whole number from 1 to 1000"),
        ({"init_std": -1.0}, "init_std=-1.0"),
        ({"softcap": -1.0}, "softcap=-1.0"),
        ({"logit_scale": float("nan")}, "logit_scale=nan"),
        ({"norm": "none", "norm_embedding": True}, "norm_embedding=True with norm='none'"),
    ],
)
def test_a_wrong_configuration_names_field_value_and_what_is_allowed(options, says):
    with pytest.raises(ValueError, match=says):
        tiny(**options)


def test_wrong_inputs_are_refused_by_name():
    with pytest.raises(ValueError, match="13 tokens, but context=12"):
        GPT(tiny(), 11)(tokens(1, 13))
    with pytest.raises(ValueError, match="patch=5 does not tile image=28"):
        ViT(tiny(causal=False), patch=5)
    for patch in (0, -7, 56):
        with pytest.raises(ValueError, match=f"patch={patch} does not tile image=28"):
            ViT(tiny(causal=False), patch=patch)
    vit = ViT(tiny(causal=False), image=8, patch=2)
    for shape in ((2, 1, 4, 16), (2, 1, 9, 9), (2, 3, 8, 8), (1, 8, 8)):  # the first two have 16 patches as well
        with pytest.raises(ValueError, match=r"allowed is \(B, 1, 8, 8\)"):
            vit(torch.zeros(shape))
    with pytest.raises(ValueError, match="CLS token comes first"):
        ViT(tiny())
    with pytest.raises(ValueError, match="pool='max': allowed are cls, mean"):
        ViT(tiny(causal=False), pool="max")

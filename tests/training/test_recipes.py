"""Recipes hold what they claim, refuse what they do not know, and train every variant."""

from dataclasses import asdict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.models.variants import VARIANTS
from qkvlab.training.recipes import RECIPES, parse_arm, recipe
from qkvlab.training.trainer import Trainer, learning_rate


def test_paper_is_what_the_papers_ran():
    run = recipe("paper", "identity-q")
    model = run.model
    assert (model.variant, model.norm, model.norm_gain, model.activation) == ("identity-q", "layer", True, "gelu")
    assert (model.positions, model.tied, model.bias, model.qk_norm, model.dropout) == ("learned", True, False, False, 0)
    assert (run.optimiser, run.betas, run.weight_decay, run.clip) == ("adamw", (0.9, 0.95), 0.1, 1.0)
    assert learning_rate(run, run.steps - 1) == pytest.approx(0.1)  # cosine to a tenth, at the last step


def test_fast_ends_at_rate_zero_and_is_as_large_as_paper():
    run = recipe("fast")
    assert (run.optimiser, run.model.qk_norm, run.model.positions, run.model.tied) == ("muon", True, "rope", False)
    assert recipe("fast", task="sort").model.positions == recipe("fast", task="mnist").model.positions == "learned"
    assert 0 < learning_rate(run, run.steps - 1) < 0.02
    fast, paper = (
        sum(p.numel() for p in Trainer(recipe(name, task="shakespeare")).model.parameters()) for name in RECIPES
    )
    assert 0.9 < fast / paper < 1.1


def test_overrides_reach_the_run_or_the_model_and_warmup_shrinks_with_the_steps():
    run = recipe("paper", "tie-kv", steps=300, lr=0.005, width=64, heads=2, logit_scale=2.0)
    assert (run.steps, run.lr, run.model.width, run.model.heads, run.model.logit_scale) == (300, 0.005, 64, 2, 2.0)
    assert (run.warmup, recipe("paper").warmup, recipe("paper", warmup=7).warmup) == (30, 100, 7)
    assert recipe("fast", steps=3).warmup == 0


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: recipe("slow"), "recipe 'slow': allowed are paper, fast"),
        (lambda: recipe("fast", learning_rate=1), "unknown setting learning_rate: allowed are .*lr"),
        (lambda: recipe("fast", "qvk"), "qvk"),
        (lambda: recipe("paper", steps=0), "steps=0"),
        (lambda: recipe("paper", model=None), "unknown setting model"),
        (lambda: parse_arm("qkv:mlp"), "'mlp' is not setting=value"),
        (lambda: parse_arm("qkv:depth=3"), "'depth=3' is not setting=value with one of: .*layers"),
        (lambda: parse_arm("qkv:mlp=wide"), "mlp='wide' is not of type float"),
        (lambda: parse_arm("qkv:layers=2.5"), "layers='2.5' is not of type int"),
        (lambda: parse_arm("qkv:tied=maybe"), "tied='maybe' is not of type bool"),
        (lambda: parse_arm("qkv:variant=qkv"), "'variant=qkv' is not"),
    ],
)
def test_what_is_not_allowed_is_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_arms():
    assert parse_arm("qkv") == ("qkv", {})
    slug, changed = parse_arm("identity-q:mlp=4.5:layers=2:tied=false:norm=rms:betas=0.8,0.9:init_std=none:patch=none")
    assert slug == "identity-q"
    assert changed == {"mlp": 4.5, "layers": 2, "tied": False, "norm": "rms", "betas": (0.8, 0.9), "init_std": None,
                       "patch": None}  # fmt: skip
    assert recipe("paper", slug, **changed).model.mlp == 4.5


@settings(deadline=None, max_examples=25)
@given(
    name=st.sampled_from(sorted(RECIPES)),
    slug=st.sampled_from(VARIANTS),
    mlp=st.floats(0.5, 8, allow_nan=False),
    scale=st.floats(0.1, 8),
    steps=st.integers(1, 10**6),
    tied=st.booleans(),
)
def test_an_arm_says_what_its_overrides_say(name, slug, mlp, scale, steps, tied):
    text = f"{slug}:mlp={mlp!r}:logit_scale={scale!r}:steps={steps}:tied={tied}"
    parsed, changed = parse_arm(text)
    direct = recipe(name, slug, mlp=mlp, logit_scale=scale, steps=steps, tied=tied)
    assert asdict(recipe(name, parsed, **changed)) == asdict(direct)


def accuracy(slug, **settings):
    trainer = Trainer(recipe("fast", slug, width=32, heads=2, layers=2, eval_every=1000, device="cpu", **settings))
    for _ in trainer:
        pass
    assert trainer.status == "done", trainer.message
    return trainer.records[-1].val_accuracy


@pytest.mark.parametrize("slug", [*VARIANTS, "qkv+mqa"])
def test_fast_learns_lists_with_every_variant(slug):
    assert accuracy(slug, task="copy", length=6, steps=40) > 0.5  # guessing: 0.1


def test_fast_learns_lists_that_ask_for_the_place_counted_from_the_end():
    assert accuracy("qkv", task="reverse", steps=60, batch=32) > 0.9  # under RoPE 0.3 at most


def test_fast_learns_images():
    assert accuracy("qkv", task="digits", steps=60, batch=32) > 0.4  # guessing: 0.1

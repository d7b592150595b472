"""The two recipes of the course, and arms: a variant with what is changed about it.

`paper`: what the papers ran, scaled down. Pre-LayerNorm with gain, GELU, learned positions, tied embeddings, no biases,
AdamW (0.9, 0.95) with decay 0.1 on everything with two dimensions, clip 1, cosine to a tenth; the initial spread keeps
GPT-2 small's 0.02 * sqrt(768) = 0.554 per sqrt(width). Every comparison that speaks about the papers uses it.

`fast`: for class. Muon on the matrices, RMSNorm without gain, RoPE (learned positions for lists and images), QK-norm,
squared ReLU, capped logits. It reaches in seconds what `paper` reaches in a minute, but QK-norm hides the question of
the logit scale.
"""

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from qkvlab.models.transformer import ModelConfig
from qkvlab.tasks import TEXTS
from qkvlab.training.trainer import RunConfig

PAPER_MODEL: dict[str, Any] = {
    "layers": 4, "heads": 4, "width": 128, "context": 64, "mlp": 4.0, "activation": "gelu",
    "norm": "layer", "norm_gain": True, "positions": "learned", "tied": True, "bias": False, "dropout": 0.0,
    "init": "normal", "init_std": None, "init_depth_scaled": True,
}  # fmt: skip
PAPER_RUN: dict[str, Any] = {
    "optimiser": "adamw", "steps": 2000, "batch": 16, "lr": 2e-3, "betas": (0.9, 0.95), "weight_decay": 0.1,
    "schedule": "cosine", "min_lr_ratio": 0.1, "clip": 1.0,
}  # fmt: skip
FAST_MODEL: dict[str, Any] = {
    "layers": 4, "heads": 4, "width": 128, "context": 64, "mlp": 4.0, "activation": "relu2",
    "norm": "rms", "norm_gain": False, "norm_embedding": True, "rope_base": 1000.0,
    "qk_norm": True, "logit_scale": 1.5, "softcap": 15.0, "tied": False, "bias": False, "dropout": 0.0,
    "init": "uniform",
}  # fmt: skip
FAST_RUN: dict[str, Any] = {
    "optimiser": "muon", "steps": 400, "batch": 16, "lr": 0.03, "lr_matrix": 0.04, "betas": (0.8, 0.95),
    "weight_decay": 0.0, "schedule": "linear-tail", "decay_fraction": 0.9, "min_lr_ratio": 0.0, "clip": 0.0,
}  # fmt: skip
RECIPES = {"paper": (PAPER_MODEL, PAPER_RUN), "fast": (FAST_MODEL, FAST_RUN)}
WARMUP = {"paper": 100, "fast": 0}

_MODEL_FIELDS = {f.name for f in fields(ModelConfig)}
_RUN_FIELDS = {f.name for f in fields(RunConfig)} - {"model"}
_ARM_FIELDS = (_MODEL_FIELDS | _RUN_FIELDS) - {"variant", "seed", "task", "tokens", "data", "length"}  # one for all


def recipe(name: str, variant: str = "qkv", **overrides: Any) -> RunConfig:
    """The run a recipe prescribes for a variant; `overrides` are fields of RunConfig or ModelConfig.

    Warm-up, unless given, is the recipe's own but at most a tenth of the steps. Raises ValueError for a name, variant,
    field or value that is not allowed.
    """
    if name not in RECIPES:
        raise ValueError(f"recipe {name!r}: allowed are {', '.join(RECIPES)}")
    if unknown := overrides.keys() - _MODEL_FIELDS - _RUN_FIELDS:
        allowed = ", ".join(sorted(_RUN_FIELDS | _MODEL_FIELDS))
        raise ValueError(f"unknown setting {', '.join(sorted(unknown))}: allowed are {allowed}")
    model, run = RECIPES[name]
    if name == "fast":  # patches lie in two dimensions and lists ask for places counted from the end: RoPE serves text
        model = {**model, "positions": "rope" if overrides.get("task", "text") in TEXTS else "learned"}
    model = {**model, "variant": variant, **{k: v for k, v in overrides.items() if k in _MODEL_FIELDS}}
    run = {**run, **{k: v for k, v in overrides.items() if k in _RUN_FIELDS}}
    run.setdefault("warmup", min(WARMUP[name], int(run["steps"]) // 10))
    return RunConfig(model=ModelConfig(**model), **run)


def parse_arm(text: str) -> tuple[str, dict[str, Any]]:
    """An arm as written on the command line: "identity-q:mlp=4.5:logit_scale=2" -> ("identity-q", {"mlp": 4.5, ...}).

    Raises ValueError when a setting is unknown or its value is not of the field's type.
    """
    slug, *settings = text.split(":")
    hints = {**get_type_hints(ModelConfig), **get_type_hints(RunConfig)}
    overrides: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or key not in _ARM_FIELDS:
            allowed = ", ".join(sorted(_ARM_FIELDS))
            raise ValueError(f"arm {text!r}: {setting!r} is not setting=value with one of: {allowed}")
        overrides[key] = _parse(text, key, value, hints[key])
    return slug, overrides


def _parse(arm: str, key: str, value: str, hint: Any) -> Any:
    if get_origin(hint) not in (None, Literal, tuple):  # X | None
        if value == "none":
            return None
        hint = next(h for h in get_args(hint) if h is not type(None))
    try:
        if hint is bool:
            return {"true": True, "false": False, "1": True, "0": False}[value.lower()]
        if get_origin(hint) is tuple:
            return tuple(float(v) for v in value.split(","))
        return hint(value) if hint in (int, float) else value
    except (KeyError, ValueError):
        kind = getattr(hint, "__name__", "list of numbers")
        raise ValueError(f"arm {arm!r}: {key}={value!r} is not of type {kind}") from None

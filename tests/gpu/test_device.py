import itertools
import math

import numpy as np
import pytest
import torch

from qkvlab.models.transformer import ModelConfig
from qkvlab.models.variants import VARIANTS
from qkvlab.training.recipes import recipe
from qkvlab.training.trainer import RunConfig, Trainer

RECIPES = pytest.mark.parametrize("name", ["paper", "fast"])


def config(name, device, variant="qkv", **settings):
    small = {"layers": 2, "heads": 4, "width": 64, "context": 32, "batch": 16, "eval_rows": 64, "device": device}
    return recipe(name, variant, **(small | {"steps": 8, "eval_every": 4, "seed": 1} | settings))


def losses(run):
    return [r.loss for r in run.records]


@RECIPES
@pytest.mark.parametrize("variant", [*VARIANTS, "qkv+gqa2", "tie-kv+mqa", "tie-qk+pos2d"])
def test_every_variant_trains_where_the_cpu_does(device, task, name, variant):
    if "pos2d" in variant and task.kind == "text":
        with pytest.raises(ValueError, match="causal"):
            config(name, device, variant)
        return
    settings = {"causal": task.kind == "text"}
    run = Trainer(config(name, device, variant, **settings), task=task)
    list(run)
    assert run.status == "done", run.message
    assert next(run.model.parameters()).device.type == device.partition(":")[0]
    cpu = Trainer(config(name, "cpu", variant, **settings), task=task)
    list(cpu)
    np.testing.assert_allclose(losses(run)[:2], losses(cpu)[:2], rtol=1e-3)  # the same run, up to rounding
    np.testing.assert_allclose(losses(run), losses(cpu), rtol=0.1)  # rounding grows with the steps


@RECIPES
def test_a_run_taken_up_goes_on(device, task, name, tmp_path):
    settings = {"dropout": 0.1, "steps": 12}
    whole = Trainer(config(name, device, **settings), task=task)
    list(whole)
    first = Trainer(config(name, device, **settings), tmp_path, task=task)
    list(itertools.islice(first, 6))
    first.stop()
    second = Trainer(config(name, device, **settings), tmp_path, task=task)
    assert second.step == 6
    for name_, tensor in first.model.state_dict().items():
        assert torch.equal(second.model.state_dict()[name_], tensor)
    list(second)
    # dropout included; on CUDA the sums of a backward pass may round differently from run to run
    np.testing.assert_allclose(losses(second), losses(whole), rtol=0.0 if device == "cpu" else 1e-3)


def test_a_run_moves_from_one_device_to_another(device, task, tmp_path):
    first = Trainer(config("fast", "cpu", steps=12), tmp_path, task=task)
    list(itertools.islice(first, 6))
    first.stop()
    second = Trainer(config("fast", device, steps=12), tmp_path, task=task)
    assert second.step == 6 and second.evaluate() == pytest.approx(first.evaluate(), rel=1e-4)
    list(second)
    assert second.status == "done"


@pytest.mark.parametrize("variant", ["qkv", "identity-q", "tie-kv+mqa"])
def test_maps_are_those_of_the_cpu(device, task, variant):
    run, cpu = (Trainer(config("fast", d, variant), task=task) for d in (device, "cpu"))
    next(run)
    cpu.model.load_state_dict(run.model.state_dict())
    x, _ = task.validation(32, 3)
    ours, theirs = run.maps(x), cpu.maps(x)
    assert len(ours) == 2 and all(m.device.type == device.partition(":")[0] for m in ours)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(a.sum(-1).cpu(), torch.ones(a.shape[:-1]), rtol=0, atol=1e-5)


@RECIPES
def test_bfloat16(device, task, name):
    if device == "cpu":
        with pytest.raises(ValueError, match="bfloat16"):
            Trainer(config(name, device, dtype="bfloat16"), task=task)
        return
    run, full = (Trainer(config(name, device, steps=30, dtype=d), task=task) for d in ("bfloat16", "float32"))
    list(run)
    list(full)
    assert run.status == "done" and all(p.dtype == torch.float32 for p in run.model.parameters())
    assert losses(run) != losses(full)
    np.testing.assert_allclose(losses(run), losses(full), rtol=0.1)


def test_training_to_the_end(device, task):
    run = Trainer(config("fast", device, steps=150, eval_every=50), task=task)
    list(run)
    best = 0.8 * math.log(1 / 0.8) + 0.2 * math.log(1 / 0.1) if task.kind == "text" else 0.0  # the text's own entropy
    assert run.records[-1].val_loss < best + 0.35
    assert run.records[-1].val_accuracy is None or run.records[-1].val_accuracy > 0.9


def test_out_of_memory_on_the_device(device, task, tmp_path):
    run = Trainer(config("fast", device), tmp_path, task=task)
    list(itertools.islice(run, 4))
    forward = run.model.forward
    run.model.forward = lambda x: forward(x) + torch.empty(2**45, device=device)
    assert list(run) == [] and run.status == "out of memory" and device in run.message
    again = Trainer(config("fast", device), tmp_path, task=task)
    list(again)
    assert again.status == "done"  # the device is usable afterwards


def test_auto_finds_the_device(device):
    found = Trainer(RunConfig(model=ModelConfig(layers=1, width=16), task="reverse", steps=1)).device.type
    if device != "cpu":
        assert found == device.partition(":")[0]

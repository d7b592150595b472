import errno
import itertools
import json
import math
import os
import random
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from qkvlab.models.transformer import ModelConfig
from qkvlab.tasks.text import own
from qkvlab.training import checkpoint, trainer
from qkvlab.training.trainer import RunConfig, RunError, Trainer, build_model, learning_rate

RECIPES = pytest.mark.parametrize("recipe", ["paper", "fast"])


def course(run):
    """What a run is, without its times."""
    return [(r.step, r.loss, r.lr, r.grad_norm, r.val_loss, r.val_accuracy) for r in run.records]


def same_weights(a, b):
    a, b = a.model.state_dict(), b.model.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def finished(config, folder=None):
    run = Trainer(config, folder)
    list(run)
    assert run.status == "done", run.message
    return run


def bytes_in(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


# ---- the loop is the textbook's


def test_the_loop_is_that_of_plain_torch(tiny):
    config = tiny(dropout=0.0, steps=6, warmup=2, clip=0.05, weight_decay=0.3)
    run = Trainer(config)
    task, model = run.task, build_model(config, run.task)
    model.init_weights(config.seed)
    named = dict(model.named_parameters())
    groups = [
        {"params": [p for p in named.values() if p.ndim >= 2], "weight_decay": 0.3},
        {"params": [p for p in named.values() if p.ndim < 2], "weight_decay": 0.0},
    ]
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas)
    clipped = 0
    for step, record in enumerate(run):
        x, y = task.batch(np.random.default_rng((config.seed, trainer.BATCH, step)), config.batch, 0)
        loss = F.cross_entropy(model(x).reshape(-1, 10), y.reshape(-1))
        adamw.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        clipped += norm > 0.05
        for group in adamw.param_groups:
            group["lr"] = record.lr
        adamw.step()
        assert record.loss == pytest.approx(loss.item(), rel=1e-5)
        assert record.grad_norm == pytest.approx(norm.item(), rel=1e-4)
    assert clipped
    for name, p in run.model.named_parameters():
        torch.testing.assert_close(p, named[name], rtol=1e-4, atol=1e-6)


@RECIPES
def test_training_learns(tiny, recipe):
    run = finished(tiny(recipe, task="copy", dropout=0.0, width=32, batch=32, steps=120, warmup=5, lr=0.01))
    assert run.records[-1].val_loss < 0.1 * math.log(10)
    assert run.records[-1].val_accuracy > 0.99


def test_warm_up_and_cosine_are_torchs_schedulers():
    config = RunConfig(steps=50, warmup=10, schedule="cosine", min_lr_ratio=0.1)
    sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, T_max=40, eta_min=0.1)
    ours = [learning_rate(config, step) for step in range(50)]
    assert ours[:10] == pytest.approx(np.arange(1, 11) / 10)
    for value in ours[10:]:
        sgd.step()
        cosine.step()
        assert value == pytest.approx(sgd.param_groups[0]["lr"])


@settings(deadline=None)
@given(
    st.integers(1, 400),
    st.integers(0, 40),
    st.floats(0.05, 1),
    st.floats(0, 1),
    st.sampled_from(["cosine", "linear-tail"]),
)
def test_the_rate_rises_then_falls_and_is_never_zero(steps, warmup, fraction, ratio, schedule):
    config = RunConfig(steps=steps, warmup=warmup, decay_fraction=fraction, min_lr_ratio=ratio, schedule=schedule)
    rates = [learning_rate(config, step) for step in range(steps)]
    assert all(0 <= rate <= 1 for rate in rates)
    assert all(rate > 0 for rate in rates[:-1])
    after = rates[warmup:]
    assert all(a >= b for a, b in itertools.pairwise(after))
    if schedule == "linear-tail" and after:
        untouched = steps - fraction * steps
        assert all(rate == 1 for step, rate in enumerate(rates) if warmup <= step < untouched - 1)
        assert after[-1] == pytest.approx(ratio + (1 - ratio) * min(1, 1 / (fraction * steps)))


def test_evaluation_is_the_loss_on_all_validation_rows(tiny):
    config = tiny(eval_rows=600, mlp=128, length=6)  # so wide that the rows go through in several pieces
    run = Trainer(config)
    x, y = run.task.validation(0, 600)
    run.model.eval()
    with torch.no_grad():
        logits = run.model(x)
    run.model.train()
    assert run.evaluate() == pytest.approx(F.cross_entropy(logits.reshape(-1, 10), y.reshape(-1)).item(), rel=1e-5)


class Padded:
    """Two validation rows, of 5 and of 1 scored targets: the mean is over targets, not over rows."""

    name, kind, inputs, outputs, unit = "padded", "text", 4, 4, "nats"

    def batch(self, rng, size, context):
        x = torch.from_numpy(rng.integers(0, 4, (size, context)))
        return x, x

    def validation(self, context, limit):
        x = torch.arange(10).reshape(2, 5) % 4
        y = x.clone()
        y[1, 1:] = -100
        return x, y


def test_targets_that_are_not_scored_do_not_count(tiny):
    run = Trainer(tiny(context=5), task=Padded())
    x, y = Padded().validation(5, 2)
    run.model.eval()
    with torch.no_grad():
        losses = F.cross_entropy(run.model(x).reshape(-1, 4), y.reshape(-1).clamp(min=0), reduction="none")
    run.model.train()
    assert run.evaluate() == pytest.approx(losses[y.reshape(-1) >= 0].mean().item(), rel=1e-5)


def test_seconds_leave_evaluation_and_saving_out(tiny, tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(trainer.time, "perf_counter", lambda: now[0])
    run = Trainer(tiny(), tmp_path)

    def takes(seconds, method):
        def call(*args):
            now[0] += seconds
            return method(*args)

        return call

    run.optimiser.step = takes(1, run.optimiser.step)
    run._validate = takes(100, run._validate)
    run.save = takes(100, run.save)
    assert [r.seconds for r in run] == list(range(1, 9))
    resumed = Trainer(tiny(), tmp_path)
    assert resumed.seconds == 8


@pytest.mark.parametrize("task", ["reverse", "digits", "shakespeare"])
def test_every_kind_of_task_trains(tiny, task):
    run = finished(tiny(task=task, steps=3, context=8))
    assert [r.step for r in run.records] == [1, 2, 3]
    assert (run.records[-1].val_accuracy is None) == (task == "shakespeare")
    x, _ = run.task.validation(8, 2)
    maps = run.maps(x)
    assert len(maps) == 1
    torch.testing.assert_close(maps[0].sum(-1), torch.ones(maps[0].shape[:-1]))


# ---- a run is a function of its config


@RECIPES
def test_two_runs_in_two_threads_get_their_solo_losses(tiny, recipe):
    configs = [tiny(recipe, "qkv", steps=12), tiny(recipe, "identity-q", steps=12, seed=1)]
    solo = [course(finished(config)) for config in configs]
    together = [Trainer(config) for config in configs]
    gate = threading.Barrier(2, timeout=60)

    def work(run):
        gate.wait()
        for _ in run:
            gate.wait()  # step by step, so that they really interleave

    threads = [threading.Thread(target=work, args=(run,)) for run in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [course(run) for run in together] == solo
    assert solo[0] != solo[1]


def test_nothing_global_is_drawn_from_or_set(tiny, tmp_path):
    def state():
        _, keys, *rest = np.random.get_state()
        return (
            torch.get_rng_state().tolist(), random.getstate(), keys.tolist(), rest, torch.get_num_threads(),
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
        )  # fmt: skip

    before = state()
    first = finished(tiny(), tmp_path / "a")
    assert state() == before
    torch.manual_seed(99)
    assert course(finished(tiny())) == course(first)


def test_dropout_is_drawn_anew_each_step_and_depends_on_the_seed(tiny):
    run = Trainer(tiny(lr=1e-12, weight_decay=0.0))  # the weights hardly move: what differs is batch and mask
    fixed = run.task.batch(np.random.default_rng(0), 4, 0)
    run.task = type("Fixed", (), {"batch": lambda self, *a: fixed, "validation": run.task.validation})()
    run.task.kind, run.task.outputs, run.task.unit = "lists", 10, "nats"
    losses = [r.loss for r in run]
    assert len(set(losses)) == len(losses)


def test_looking_changes_nothing(tiny):
    quiet, watched = finished(tiny()), Trainer(tiny())
    x, _ = watched.task.validation(0, 2)
    for _ in watched:
        watched.evaluate()
        watched.maps(x)
    assert course(watched) == course(quiet)


def test_variants_of_one_seed_share_batches_and_initial_values(tiny, monkeypatch):
    seen = {}
    for variant in ("qkv", "identity-q", "tie-kv"):
        run = Trainer(tiny("paper", variant, steps=4))
        start = {name: p.clone() for name, p in run.model.named_parameters()}
        batches, draw = [], run.task.batch
        monkeypatch.setattr(
            run.task, "batch", lambda *a, draw=draw, batches=batches: (batches.append(draw(*a)), batches[-1])[1]
        )
        list(run)
        monkeypatch.undo()
        seen[variant] = start, batches
    start, batches = seen["qkv"]
    assert not torch.equal(batches[0][0], batches[1][0])
    for variant, missing in (("identity-q", "W_Q"), ("tie-kv", "W_V")):
        other, others = seen[variant]
        assert {name.split(".")[-2] for name in start.keys() - other.keys()} == {missing}
        assert all(torch.equal(other[name], start[name]) for name in other)
        assert all(
            torch.equal(a, b) for one, two in zip(batches, others, strict=True) for a, b in zip(one, two, strict=True)
        )
    assert not torch.equal(Trainer(tiny(seed=1)).model.embed.weight, start["embed.weight"])


# ---- interrupted runs go on exactly


@RECIPES
@pytest.mark.parametrize("after", [1, 3, 4, 7])
def test_stopped_and_taken_up_equals_uninterrupted(tiny, tmp_path, recipe, after):
    whole = finished(tiny(recipe))
    first = Trainer(tiny(recipe), tmp_path)
    list(itertools.islice(first, after))
    first.stop()
    assert (first.status, first.step) == ("interrupted", after)
    second = Trainer(tiny(recipe), tmp_path)
    assert second.step == after
    list(second)
    assert course(second) == course(whole)
    assert same_weights(second, whole)
    third = Trainer(tiny(recipe), tmp_path)
    assert third.status == "done" and course(third) == course(whole) and list(third) == []


@RECIPES
def test_ctrl_c_on_any_line_leaves_a_run_that_goes_on_exactly(tiny, tmp_path, recipe):
    whole = finished(tiny(recipe, steps=5, eval_every=2))
    files = {trainer.__file__, checkpoint.__file__}

    def run_until(line, folder):
        """Train with KeyboardInterrupt raised on the line-th line of ours; returns how many lines were counted."""
        count = 0

        def trace(frame, event, arg):
            nonlocal count
            if frame.f_code.co_filename not in files:
                return None
            if event == "line":
                count += 1
                if count == line:
                    sys.settrace(None)
                    raise KeyboardInterrupt
            return trace

        run = Trainer(tiny(recipe, steps=5, eval_every=2), folder)
        sys.settrace(trace)
        try:
            list(run)
        except KeyboardInterrupt:  # it came outside of the part that handles it
            run.stop()
        finally:
            sys.settrace(None)
        return run, count

    whole_run, lines = run_until(-1, tmp_path / "none")
    assert whole_run.status == "done" and lines > 300
    for line in random.Random(0).sample(range(1, lines), 24):
        folder = tmp_path / str(line)
        run, _ = run_until(line, folder)
        assert run.status in ("interrupted", "done") and run.message
        second = finished(tiny(recipe, steps=5, eval_every=2), folder)
        assert second.status == "done" and course(second) == course(whole), f"line {line}"
        assert same_weights(second, whole), f"line {line}"


def test_ctrl_c_between_a_new_checkpoint_and_its_note_is_an_interruption(tiny, tmp_path, monkeypatch):
    replace_file = os.replace

    def interrupted(source, target):
        replace_file(source, target)
        if Path(target).name == checkpoint.CHECKPOINT:
            monkeypatch.setattr(os, "replace", replace_file)
            raise KeyboardInterrupt

    run = Trainer(tiny(eval_every=2), tmp_path)
    monkeypatch.setattr(os, "replace", interrupted)
    list(run)
    assert run.status == "interrupted" and run.message.startswith("Interrupted after step 2"), run.message
    assert json.loads((tmp_path / checkpoint.STATUS).read_text())["status"] == "interrupted"
    assert Trainer(tiny(eval_every=2), tmp_path).step == 2


def test_what_a_kill_left_half_written_is_removed_later(tiny, tmp_path):
    old, new = tmp_path / ".checkpoint.safetensors.a.tmp", tmp_path / ".checkpoint.safetensors.b.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    finished(tiny(), tmp_path)
    assert not old.exists() and new.exists()  # another trainer may be writing the new one


KILLED = """
import json, os, random, signal, sys
from pathlib import Path
from qkvlab.training import checkpoint, trainer
from qkvlab.training.recipes import recipe

FILES = {trainer.__file__, checkpoint.__file__}
name, root = sys.argv[1], Path(sys.argv[2])
config = recipe(name, "identity-q", task="reverse", length=6, layers=1, heads=2, width=16, batch=4, dropout=0.2,
                steps=6, eval_every=2, eval_rows=8, device="cpu")

def child(line, folder):
    def trace(frame, event, arg):
        if frame.f_code.co_filename not in FILES:
            return None
        if event == "line":
            trace.count += 1
            if trace.count == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace
    trace.count = 0
    sys.settrace(trace)
    list(trainer.Trainer(config, folder))
    sys.settrace(None)
    (root / "lines").write_text(str(trace.count))

def fork(line, folder):
    pid = os.fork()
    if pid == 0:
        try:
            child(line, folder)
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])

warm = trainer.Trainer(config)  # torch imports much at its first step: once, here, and not in each child
warm.evaluate()
warm.optimiser.step(0.0)
fork(-1, root / "whole")
lines, kills, draw = int((root / "lines").read_text()), 0, random.Random(name)
while fork(draw.randrange(1, lines // 2) if kills < 14 else -1, root / "killed"):
    kills += 1
print(json.dumps({"lines": lines, "kills": kills}))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork: this system has none")
@RECIPES
def test_killed_on_any_line_and_taken_up_equals_uninterrupted(tmp_path, recipe):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, recipe, str(tmp_path)], capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["kills"] >= 3
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    without_times = lambda folder: [replace(r, seconds=0) for r in checkpoint.read_records(folder / "records.jsonl")]
    assert len(without_times(whole)) == 6
    assert without_times(killed) == without_times(whole)
    a, b = (load_file(folder / "checkpoint.safetensors") for folder in (whole, killed))
    assert a.keys() == b.keys() and any(name.startswith("optimiser.") for name in a)
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_streamed_corpus_is_taken_up_where_it_was(tiny, tmp_path):
    text = tmp_path / "long.txt"
    words = random.Random(0).choices(["the", "queen", "key", "of", "values", "asks"], k=2000)
    text.write_text(" ".join(words))
    config = tiny(task="text", data=str(text), context=16, steps=20, eval_every=5)
    corpus = lambda: own(str(text), "char", 2000)  # holds 2,000 characters, streams the rest
    whole = Trainer(config, task=corpus())
    list(whole)
    first = Trainer(config, tmp_path / "run", task=corpus())
    list(itertools.islice(first, 12))
    first.stop()
    second = Trainer(config, tmp_path / "run", task=corpus())
    list(second)
    assert second.task.drawn >= 19 * 4 * 16 > 2000 / 2  # much of what was held has been replaced
    assert course(second) == course(whole)


def test_the_later_of_two_trainers_in_one_folder_wins(tiny, tmp_path):
    whole = finished(tiny(steps=12))
    first = Trainer(tiny(steps=12), tmp_path)
    list(itertools.islice(first, 4))
    second = Trainer(tiny(steps=12), tmp_path)
    list(itertools.islice(second, 4))
    list(first)
    assert first.status == "interrupted" and "someone else" in first.message
    list(second)
    assert second.status == "done" and course(second) == course(whole)
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "done"


# ---- runs that end otherwise


def test_a_loss_that_is_not_finite_ends_the_run_and_keeps_the_last_good_checkpoint(tiny, tmp_path):
    run = Trainer(tiny(steps=12), tmp_path)
    list(itertools.islice(run, 6))
    good = (tmp_path / "checkpoint.safetensors").read_bytes()
    with torch.no_grad():
        run.model.embed.weight[:] = torch.nan
    assert list(run) == []
    assert (
        run.status == "diverged" and "nan" in run.message and "learning rate" in run.message and "step 6" in run.message
    )
    assert (tmp_path / "checkpoint.safetensors").read_bytes() == good
    assert all(math.isfinite(r.loss) for r in run.records) and len(run.records) == 6
    assert course(finished(tiny(steps=12), tmp_path)) == course(finished(tiny(steps=12)))  # the fault was not the run's


def test_weights_that_explode_in_one_step_are_not_saved(tiny, tmp_path):
    run = Trainer(tiny(lr=1e30, warmup=0, norm="none", eval_every=1), tmp_path)
    list(run)
    assert run.status == "diverged"
    assert not (tmp_path / "checkpoint.safetensors").exists()
    assert json.loads((tmp_path / "status.json").read_text())["status"] == "diverged"


def test_a_loss_that_stays_far_above_the_start_ends_the_run(tiny, tmp_path):
    run = Trainer(tiny(lr=1e-9, weight_decay=0.0, steps=300, eval_every=10), tmp_path)
    list(itertools.islice(run, 14))
    with torch.no_grad():
        run.model.readout.weight.mul_(1000)
    list(run)
    far = trainer.FAR * run.records[0].loss
    assert run.status == "diverged" and "times its first value" in run.message and "weights of step 10" in run.message
    assert run.step == 14 + trainer.PATIENCE and all(r.loss > far for r in run.records[14:])
    assert Trainer(run.config, tmp_path).step == 10  # nothing was saved while the loss was up there


@pytest.mark.parametrize(
    "allocate",
    [
        lambda *_: torch.empty(2**50),
        lambda *_: np.empty(2**57),
        lambda *_: (_ for _ in ()).throw(torch.OutOfMemoryError("CUDA")),
    ],
    ids=["torch on the CPU", "numpy", "CUDA"],
)
def test_out_of_memory_ends_the_run_readably(tiny, tmp_path, allocate):
    run = Trainer(tiny(), tmp_path)
    list(itertools.islice(run, 4))
    run.model.forward = allocate
    assert list(run) == []
    assert run.status == "out of memory" and "smaller batch" in run.message and "goes on from step 3" in run.message
    assert course(finished(tiny(), tmp_path)) == course(finished(tiny()))


def test_a_model_that_does_not_fit_is_refused(tiny):
    with pytest.raises(MemoryError, match="does not fit"):
        Trainer(tiny(width=2**21))


def test_other_errors_are_not_swallowed(tiny):
    run = Trainer(tiny())
    run.model.forward = lambda x: (_ for _ in ()).throw(RuntimeError("a bug"))
    with pytest.raises(RuntimeError, match="a bug"):
        next(run)


@pytest.mark.parametrize("full_at", range(1, 7))
def test_a_full_disk_ends_the_run_and_keeps_the_last_good_checkpoint(tiny, tmp_path, monkeypatch, full_at):
    written, sync = 0, os.fsync

    def full(handle):
        nonlocal written
        written += 1
        if written >= full_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    run = Trainer(tiny(), tmp_path)
    monkeypatch.setattr(os, "fsync", full)
    list(run)
    assert run.status == "disk full" and str(tmp_path) in run.message and "goes on from step" in run.message
    assert not list(tmp_path.glob(".*.tmp"))
    monkeypatch.undo()
    assert course(finished(tiny(), tmp_path)) == course(finished(tiny()))


# ---- folders that cannot be used


@pytest.fixture
def half(tiny, tmp_path):
    run = Trainer(tiny(), tmp_path)
    list(itertools.islice(run, 4))
    return tmp_path


def refuses(config, folder, *words):
    before = bytes_in(folder)
    with pytest.raises(RunError) as caught:
        Trainer(config, folder)
    assert all(word in str(caught.value) for word in words), caught.value
    assert bytes_in(folder) == before


def test_another_config_is_refused_by_the_setting_that_differs(tiny, half):
    refuses(tiny(steps=9), half, str(half), "steps=8, not 9")
    refuses(tiny(variant="tie-kv"), half, "variant='qkv', not 'tie-kv'")
    assert Trainer(tiny(device="auto"), half).step == 3  # the device is no other run


@pytest.mark.parametrize("damage", ["cut", "empty", "header", "flipped"])
def test_a_damaged_checkpoint_is_refused_by_name(tiny, half, damage):
    path = half / "checkpoint.safetensors"
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-40] ^= 1
    path.write_bytes({"cut": good[:-10], "empty": b"", "header": b"\0" * 200, "flipped": bytes(flipped)}[damage])
    refuses(tiny(), half, str(path), "damaged")


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_any_flipped_bit_of_a_checkpoint_is_noticed(tiny, half, place):
    path = half / "checkpoint.safetensors"
    data = bytearray(path.read_bytes())
    header = int.from_bytes(data[:8], "little")
    data[8 + header + int(place * (len(data) - 8 - header))] ^= 16
    path.write_bytes(data)
    refuses(tiny(), half, str(path), "damaged")


def test_a_changed_step_of_a_checkpoint_is_noticed(tiny, half):
    path = half / "checkpoint.safetensors"
    data = path.read_bytes()
    assert b'\\"step\\": 3' in data
    path.write_bytes(data.replace(b'\\"step\\": 3', b'\\"step\\": 2'))
    refuses(tiny(), half, str(path), "damaged")


def test_damaged_records_and_configs_are_refused_by_name(tiny, half):
    records, config = half / "records.jsonl", half / "config.json"
    good = records.read_text()
    assert good.count("\n") == 3
    first = json.loads(good.split("\n")[0])["loss"]
    wrong = [
        good.replace(f'"loss": {first}', f'"loss": {v}', 1) for v in ("NaN", '"x"', "null", "[1]", "1" + "0" * 400)
    ]
    assert good not in wrong
    for bad in (good.replace('"loss"', '"lass"', 1), good.split("\n", 1)[1], "", "{}\n" + good, *wrong):
        records.write_text(bad)
        refuses(tiny(), half, str(records))
    records.write_text(good + '{"step": 4, "lo')  # cut short: no record, no harm
    assert len(Trainer(tiny(), half).records) == 3
    deep, made = "[" * 200_000, config.read_text().replace('"made": {', '"made": null, "was": {')
    for bad in (
        "{",
        "[]",
        '{"config": {"model": {}, "colour": 1, "betas": []}}',
        '{"config": {"model": {}}}',
        deep,
        made,
    ):
        config.write_text(bad)
        refuses(tiny(), half, str(config))
    config.unlink()
    refuses(tiny(), half, "config.json")


def test_a_checkpoint_of_another_model_is_refused(tiny, half):
    config = json.loads((half / "config.json").read_text())
    config["config"]["model"]["width"] = 24
    (half / "config.json").write_text(json.dumps(config))
    refuses(tiny(width=24), half, "checkpoint.safetensors", "does not fit")


def test_a_folder_that_cannot_be_made_is_named(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        Trainer(tiny(), tmp_path / "file" / "run")


# ---- configs and devices


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("steps", 0), ("steps", 1.5), ("batch", 0), ("seed", -1), ("lr", 0.0), ("lr", math.nan), ("lr", math.inf),
        ("lr_matrix", -1.0), ("betas", (0.9, 1.0)), ("weight_decay", -0.1), ("warmup", -1), ("schedule", "step"),
        ("decay_fraction", 0.0), ("min_lr_ratio", 1.1), ("clip", -1.0), ("eval_every", 0), ("eval_rows", 0),
        ("optimiser", "sgd"), ("dtype", "float16"), ("device", "gpu"), ("device", "cuda:x"), ("device", "cuda:"),
        ("device", "cuda:²"),
        ("pool", "max"), ("patch", 0), ("length", 0), ("steps", True), ("batch", 10**23), ("lr", "1e-3"), ("device", 0),
        ("betas", ("a", "b")), ("betas", None), ("data", 1), ("patch", 1.5), ("task", None),
    ],
)  # fmt: skip
def test_bad_settings_are_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"^{field}=") as caught:
        RunConfig(**{field: value})
    assert "allowed" in str(caught.value)


@RECIPES
def test_configs_survive_json(tiny, recipe):
    config = tiny(recipe, "identity-q+tie-kv", seed=3, init_std=0.5)
    assert RunConfig.from_dict(json.loads(json.dumps(config.as_dict()))) == config
    assert config.settings() == replace(config, device="cuda").settings()
    with pytest.raises(ValueError, match="colour"):
        RunConfig.from_dict(config.as_dict() | {"colour": 1})
    with pytest.raises(ValueError, match="betas"):
        RunConfig.from_dict({"model": {}})


def test_devices_that_are_not_there_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert trainer.resolve_device("auto") == torch.device("cpu")
    for name in ("cuda", "cuda:1", "cuda:99999999999999", "mps"):
        with pytest.raises(ValueError, match=rf"device='{name}'.*only cpu"):
            Trainer(RunConfig(device=name))
    with pytest.raises(ValueError, match=r"bfloat16.*CUDA"):
        Trainer(RunConfig(dtype="bfloat16"))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert trainer.resolve_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert trainer.resolve_device("auto") == torch.device("cuda")
    assert trainer.resolve_device("cuda:1", "bfloat16") == torch.device("cuda:1")
    with pytest.raises(ValueError, match=r"cuda:2.*cuda:0, cuda:1"):
        trainer.resolve_device("cuda:2")


def test_what_made_a_run_is_written_down(tiny, tmp_path):
    run = Trainer(tiny(), tmp_path)
    made = json.loads((tmp_path / "config.json").read_text())["made"]
    assert made["torch"] == torch.__version__ and made["unit"] == "nats per digit"
    assert made["parameters"] == sum(
        p.numel() for n, p in run.model.named_parameters() if n.split(".")[0] in ("blocks", "norm_f")
    )


def test_patches_and_pool_reach_the_vit(tiny):
    assert Trainer(tiny(task="digits", patch=4, pool="mean")).model.config.context == 4
    assert Trainer(tiny(task="digits")).model.config.context == 17
    with pytest.raises(ValueError, match="patch=3"):
        Trainer(tiny(task="digits", patch=3))


def test_bad_tasks_are_refused():
    with pytest.raises(ValueError, match="nonsense"):
        Trainer(RunConfig(task="nonsense"))
    with pytest.raises(ValueError, match="context"):
        list(Trainer(RunConfig(model=ModelConfig(context=10**7, width=4, heads=1, layers=1, positions="none"))))

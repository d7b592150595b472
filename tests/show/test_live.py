"""Training behind a page: buttons, lockstep, what is kept, and how a page that vanishes ends its thread.

Oracle for the losses: the same configs trained alone by a plain Trainer.
"""

import errno
import gc
import json
import threading
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from qkvlab.show import live as module
from qkvlab.show.grid import AttentionGrid
from qkvlab.show.live import OFFERS, Live, Slots, _Feed, arms, faces, head_symmetry
from qkvlab.show.panel import TrainingPanel
from qkvlab.theory.measure import symmetry
from qkvlab.training.recipes import parse_arm, recipe
from qkvlab.training.trainer import Trainer

TINY = {
    "steps": 12, "width": 16, "heads": 2, "layers": 1, "context": 16, "batch": 2, "eval_every": 4, "eval_rows": 4,
    "device": "cpu",
}  # fmt: skip


def tiny(slug="qkv", **settings):
    return recipe("paper", slug, **{**TINY, **settings})


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


class Page:
    """A panel, a grid and the messages they sent."""

    def __init__(self, configs, runs_dir=None, **more):
        self.panel, self.grid = TrainingPanel("lab"), AttentionGrid()
        self.ticks, self.frames = [], []
        self.panel.send = lambda content, buffers: self.ticks.append((content, buffers[0]))
        self.grid.send = lambda content, buffers: self.frames.append((content, buffers[0]))
        self.live = Live(configs, self.panel, self.grid, runs_dir, **more)

    @property
    def now(self):
        return self.panel.controller

    def press(self, name):
        self.panel._receive(self.panel, {"command": name, "argument": None}, [])

    def wait(self, *status):
        until(lambda: self.panel.status in status)

    def losses(self):
        return [[[r.loss for r in t.records] for t in group] for group in self.now.trainers]


@pytest.fixture(autouse=True)
def nothing_goes_on():
    yield
    for live in module._running.copy():
        live.close("stop")
    until(lambda: not [t for t in threading.enumerate() if t.name == "qkvlab training"])


@pytest.fixture(scope="module")
def alone():
    """Losses of each config trained by itself."""
    kept = {}

    def train(config):
        if config not in kept:
            kept[config] = [r.loss for r in Trainer(config)]
        return kept[config]

    return train


PAIR = [tiny(), tiny("identity-q")]


def test_models_train_together_as_each_would_alone(alone):
    page = Page([tiny(seed=s, mlp=m) for m in (4.0, 3.5) for s in (0, 1)])
    assert page.panel.status == "ready" and page.panel.can == ["play", "step"] and page.panel.primary == "Train"
    page.press("play")
    page.wait("done")
    assert page.losses() == [[alone(tiny(seed=s, mlp=m)) for s in (0, 1)] for m in (4.0, 3.5)]
    assert "play" in page.panel.can and page.panel.primary == "Train again"
    assert "2 seeds, paired" in page.panel.finding and page.panel.moment.startswith("done")
    assert page.now.train_seconds > 0 and page.now.listener_seconds > 0


def test_the_curve_is_the_running_mean_with_the_seeds_as_band(alone):
    page = Page([tiny(seed=s) for s in (0, 1, 2)])
    page.press("play")
    page.wait("done")
    rows = np.frombuffer(page.panel.history, np.float32).reshape(-1, 4)
    means = []
    for seed in (0, 1, 2):
        loss, w = np.array(alone(tiny(seed=seed))), 1 / 8  # steps / 40 is below the least window of 8
        weights = (1 - w) ** np.arange(12)
        means.append([np.average(loss[: n + 1][::-1], weights=weights[: n + 1]) for n in range(12)])
    expected = np.column_stack([np.arange(1, 13), np.mean(means, 0), np.min(means, 0), np.max(means, 0)])
    np.testing.assert_allclose(rows, expected, rtol=1e-6)
    assert [(arm, step) for arm, step, *_ in page.panel.validation] == [(0, 4), (0, 8), (0, 12)]


def test_ticks_bring_every_row_once():
    page = Page(PAIR)
    page.press("play")
    page.wait("done")
    rows = np.concatenate([np.frombuffer(data, np.float32).reshape(-1, 7) for _, data in page.ticks])
    np.testing.assert_array_equal(rows, np.frombuffer(page.panel.history, np.float32).reshape(-1, 7))
    points = [point for content, _ in page.ticks for point in content["validation"]]
    assert points == page.panel.validation
    assert {content["epoch"] for content, _ in page.ticks} == {page.panel.epoch}


def test_pause_step_resume_stop_resume(alone):
    page = Page(PAIR)
    for n in (1, 2, 3):
        page.press("step")
        until(lambda n=n: page.panel.status == "paused" and page.now.step == n)
    assert page.panel.can == list(OFFERS["paused"][1]) and page.panel.primary == "Resume"
    page.press("play")
    page.wait("running", "done")
    page.press("stop")
    page.wait("stopped", "done")
    assert page.now.models()[0][0] == "Q, K, V"
    page.press("play")
    page.wait("done")
    assert page.losses() == [[alone(PAIR[0])], [alone(PAIR[1])]]


def test_steps_that_were_asked_for_before_a_stop_are_not_taken_after_it():
    page = Page(PAIR)
    page.press("step")
    until(lambda: page.panel.status == "paused" and page.now.step == 1)
    with page.now.hold():
        for name in ("step", "step", "step", "stop"):
            page.press(name)
    page.wait("stopped")
    at = page.now.step
    page.press("step")
    page.wait("paused")
    assert at <= 2 and page.now.step == at + 1


def test_a_button_that_makes_no_sense_does_nothing():
    page = Page(PAIR)
    for name in ("pause", "stop", "reset", "pin"):
        page.press(name)
    assert page.panel.status == "ready" and page.now._thread is None


def test_a_reloaded_page_takes_the_run_up(tmp_path, alone):
    page = Page(PAIR, tmp_path)
    page.press("step")
    until(lambda: page.panel.status == "paused" and page.now.step == 1)
    run_id = page.panel.run_id
    assert (tmp_path / "pages" / run_id / "page.json").exists()

    fresh = Page([tiny("tie-kv")], tmp_path)  # the settings on the page may be others by now
    for wrong in ("", "../../etc", "0" * 16, run_id[:-1]):
        fresh.panel._receive(fresh.panel, {"command": "hello", "argument": wrong}, [])
    assert fresh.panel.status == "ready" and fresh.now is fresh.live
    fresh.panel._receive(fresh.panel, {"command": "hello", "argument": run_id}, [])
    fresh.wait("saved")
    assert page.now._thread is None or not page.now._thread.is_alive()  # two pages never train one run
    assert [arm["label"] for arm in fresh.panel.arms] == ["Q, K, V", "W_Q=I"] and fresh.panel.primary == "Resume"
    assert len(np.frombuffer(fresh.panel.history, np.float32)) == 7 and fresh.grid.frame
    fresh.press("play")
    fresh.wait("done")
    assert fresh.losses() == [[alone(PAIR[0])], [alone(PAIR[1])]]
    fresh.press("reset")  # now the settings of the page
    fresh.wait("ready")
    assert [arm["label"] for arm in fresh.panel.arms] == ["Q, K=V"] and not (tmp_path / "pages" / run_id).exists()


def test_checkpoints_some_steps_apart_catch_up(tmp_path, alone):
    page = Page(PAIR, tmp_path)
    page.press("step")
    until(lambda: page.panel.status == "paused")
    page.now.close("stop")
    ahead = page.now.trainers[1][0]  # as a kill between two saves leaves it
    for _ in range(3):
        next(ahead)
    ahead.save()
    fresh = Page(PAIR, tmp_path)
    fresh.panel._receive(fresh.panel, {"command": "hello", "argument": page.panel.run_id}, [])
    fresh.wait("saved")
    fresh.press("play")
    fresh.wait("done")
    assert fresh.losses() == [[alone(PAIR[0])], [alone(PAIR[1])]]
    rows = np.frombuffer(fresh.panel.history, np.float32).reshape(-1, 7)
    assert rows[:, 0].tolist() == list(range(1, 13)) and np.isfinite(rows).all()


def test_settings_changed_while_a_run_is_unfinished_wait_for_reset():
    page = Page(PAIR)
    page.press("step")
    until(lambda: page.panel.status == "paused")
    Live([tiny("tie-qkv")], page.panel, page.grid)
    assert page.now is page.live and "press Reset" in page.panel.message
    Live(PAIR, page.panel, page.grid)  # and back again
    assert page.now is page.live and "press Reset" not in page.panel.message and page.live.successor is None
    Live([tiny("tie-qkv")], page.panel, page.grid)
    page.press("reset")
    assert [arm["label"] for arm in page.panel.arms] == ["Q=K=V"] and page.panel.status == "ready"


def test_settings_changed_while_a_run_goes_on_count_when_it_trains_again():
    page = Page(PAIR)
    page.press("step")
    until(lambda: page.panel.status == "paused")
    Live([tiny("tie-qkv")], page.panel, page.grid)
    page.press("play")
    page.wait("done")
    assert len(page.panel.arms) == 2 and "settings of this page" in page.panel.message
    page.press("play")
    until(lambda: page.now is not page.live)
    page.wait("done")
    assert [arm["label"] for arm in page.panel.arms] == ["Q=K=V"]


def test_settings_changed_after_a_run_leave_its_curves_until_train():
    page = Page(PAIR)
    page.press("play")
    page.wait("done")
    history = page.panel.history
    Live([tiny("tie-qkv")], page.panel, page.grid)
    assert page.panel.status == "ready" and page.panel.history == history
    page.press("play")
    page.wait("done")
    assert len(page.panel.arms) == 1


def test_a_page_that_vanishes_ends_its_run(tmp_path):
    made = {}
    stay = threading.Event()

    def session():
        made["page"] = Page([tiny(steps=100_000, eval_every=100_000)], tmp_path)
        made["page"].press("play")
        stay.wait(30)

    owner = threading.Thread(target=session)
    owner.start()
    until(lambda: "page" in made and made["page"].now.step > 3)
    stay.set()
    owner.join()
    live = made["page"].live
    until(lambda: not live._thread.is_alive())
    [checkpoint] = (tmp_path / "pages" / live.run_id).glob("*/checkpoint.safetensors")
    assert checkpoint.stat().st_size > 0 and not live.trainers  # nothing of it stays in memory
    assert json.loads((checkpoint.parent / "status.json").read_text())["status"] == "interrupted"


def test_a_paused_page_that_vanishes_ends_too():
    made = {}

    def session():
        made["page"] = Page(PAIR)
        made["page"].press("step")
        until(lambda: made["page"].panel.status == "paused")

    owner = threading.Thread(target=session)
    owner.start()
    owner.join()
    until(lambda: not made["page"].live._thread.is_alive())


def test_a_page_that_is_gone_is_forgotten():
    page = Page(PAIR)
    page.press("step")
    page.wait("paused")
    page.live.close("drop")
    page.panel.close()  # ipywidgets keeps a widget until it is closed
    page.grid.close()
    known = weakref.ref(page.live)
    del page
    gc.collect()
    assert known() is None


def test_stop_while_the_data_are_read(monkeypatch):
    stay, load = threading.Event(), module.tasks.load
    monkeypatch.setattr(module.tasks, "load", lambda *a, **k: (stay.wait(30), load(*a, **k))[1])
    page = Page(PAIR)
    page.press("play")
    page.wait("starting")
    page.press("stop")
    stay.set()
    page.wait("stopped")
    page.press("play")
    page.wait("done")


def test_a_newer_run_of_the_same_owner_stops_the_older():
    older, newer = Page([tiny(steps=100_000, eval_every=100_000)]), Page(PAIR)
    older.press("play")
    until(lambda: older.now.step > 1)
    newer.press("play")
    assert older.panel.status == "stopped" and not older.live._thread.is_alive()
    newer.wait("done")


def test_others_wait_in_line_and_are_told_their_place(monkeypatch):
    slots = Slots(1)
    monkeypatch.setattr(module, "SLOTS", slots)
    assert slots.enter("somebody", lambda place: None, lambda: False)
    page = Page(PAIR)
    page.press("play")
    page.wait("waiting")
    assert "number 1 in line" in page.panel.message and page.panel.can == ["stop", "reset"]
    slots.leave("somebody")
    page.wait("done")
    assert slots.enter("somebody", lambda place: None, lambda: False)  # it has left its place
    page.press("play")
    page.wait("waiting")
    page.press("stop")
    page.wait("stopped")
    slots.leave("somebody")
    assert slots._line == []


def test_a_paused_run_gives_its_place_away(monkeypatch):
    slots = Slots(1)
    monkeypatch.setattr(module, "SLOTS", slots)
    page = Page(PAIR)
    page.press("step")
    until(lambda: page.panel.status == "paused")
    assert slots._line == []


def test_the_line_is_first_come_first_served():
    slots, places = Slots(2), {}
    inside = [slots.enter(name, lambda place: None, lambda: False) for name in "ab"]
    threads = []
    for name in "cd":
        note = lambda place, name=name: places.setdefault(name, []).append(place)
        enter = lambda name=name, note=note: places.update({name + "!": slots.enter(name, note, lambda: False)})
        threads.append(threading.Thread(target=enter))
        threads[-1].start()
        until(lambda name=name: name in places)
    assert inside == [True, True] and places == {"c": [1], "d": [2]}
    slots.leave("a")
    until(lambda: "c!" in places and places["d"] == [2, 1])
    slots.leave("c")
    until(lambda: "d!" in places)
    for thread in threads:
        thread.join()


def test_one_diverges_and_the_other_goes_on():
    page = Page([tiny(steps=60), tiny(steps=60, lr=1e6, clip=0.0, warmup=0)])
    page.press("play")
    page.wait("done", "diverged")
    assert page.panel.status == "done" and "diverged" in page.panel.message
    [[arm, step, words]] = page.panel.ended
    assert arm == 1 and 0 < step < 60 and "seed 0" in words
    rows = np.frombuffer(page.panel.history, np.float32).reshape(-1, 7)
    assert np.isfinite(rows[:, 1]).all() and np.isnan(rows[-1, 4])


def test_a_model_that_diverges_as_it_is_validated_leaves_the_others_alone(monkeypatch, alone):
    alone(PAIR[0])
    validate = Trainer._validate
    broken = lambda self: (np.nan, None) if self.config == PAIR[1] else validate(self)
    monkeypatch.setattr(Trainer, "_validate", broken)
    page = Page(PAIR)
    page.press("play")
    page.wait("done", "error")
    assert page.panel.status == "done" and page.losses()[0] == [alone(PAIR[0])]
    assert [(arm, step) for arm, step, _ in page.panel.ended] == [(1, 4)] and "validation loss" in page.panel.message


def test_out_of_memory_says_so_and_goes_on_from_what_was_kept(tmp_path, monkeypatch, alone):
    page = Page(PAIR, tmp_path)
    page.press("step")
    until(lambda: page.panel.status == "paused")
    trainer, step = page.now.trainers[1][0], Trainer._step
    greedy = lambda self: step(self) if self is not trainer or self.step < 5 else (_ for _ in ()).throw(MemoryError())
    monkeypatch.setattr(Trainer, "_step", greedy)
    page.press("play")
    page.wait("out of memory")
    assert "W_Q=I" in page.panel.message and page.panel.primary == "Try again"
    page.press("play")
    page.wait("done")
    assert page.losses() == [[alone(PAIR[0])], [alone(PAIR[1])]]


def test_a_full_disk_says_so(tmp_path, monkeypatch):
    page = Page(PAIR, tmp_path)

    def full(self):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Trainer, "save", full)
    page.press("step")
    page.wait("disk full")
    assert "No space left" in page.panel.message and "play" in page.panel.can


def test_a_runs_folder_that_cannot_be_written_does_not_stop_anybody(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    page = Page(PAIR, tmp_path / "file")
    page.press("play")
    page.wait("done")
    assert "Not kept on disk" in page.panel.message and page.panel.run_id == ""


def test_what_is_not_kept_is_tried_again_from_the_start(tmp_path, monkeypatch, alone):
    alone(PAIR[0]), alone(PAIR[1])
    (tmp_path / "file").write_text("not a folder")
    page, step = Page(PAIR, tmp_path / "file"), Trainer._step
    greedy = lambda self: step(self) if self.step < 5 else (_ for _ in ()).throw(MemoryError())
    monkeypatch.setattr(Trainer, "_step", greedy)
    page.press("play")
    page.wait("out of memory")
    monkeypatch.setattr(Trainer, "_step", step)
    page.press("play")
    page.wait("done", "error")
    assert page.panel.status == "done" and page.losses() == [[alone(PAIR[0])], [alone(PAIR[1])]]


def test_what_cannot_be_trained_says_why(tmp_path):
    page = Page([tiny(task="text", data=str(tmp_path / "missing.txt"))])
    page.press("play")
    page.wait("error")
    assert "missing.txt" in page.panel.message
    with pytest.raises(ValueError, match="at least one"):
        Live([], page.panel)
    with pytest.raises(ValueError, match="same number of steps"):
        Live([tiny(), tiny(steps=13)], page.panel)


def test_old_runs_of_pages_are_swept_and_others_left_alone(tmp_path):
    import os

    home = tmp_path / "pages"
    for name in ("a" * 16, "b" * 16, "my own folder"):
        (home / name).mkdir(parents=True)
    long_ago = time.time() - module.SAVED_FOR - 60
    os.utime(home / ("a" * 16), (long_ago, long_ago))
    os.utime(home / "my own folder", (long_ago, long_ago))
    page = Page(PAIR, tmp_path)
    page.press("step")
    page.wait("paused")
    assert {p.name for p in home.iterdir()} == {"b" * 16, "my own folder", page.panel.run_id}


def test_maps_of_the_chosen_models_for_the_given_text():
    page = Page([*PAIR, tiny("tie-kv")], probe="To be")
    page.press("step")
    until(lambda: page.panel.status == "paused")
    about = page.grid.about
    assert about["tokens"] == ["T", "o", "␣", "b", "e"] and about["shape"] == [2, 1, 2, 5] and about["step"] == 1
    x, _ = page.now._probe_input(page.now.trainers[0][0], "To be")
    expected = [page.now.trainers[i][0].maps(x)[0][0].numpy() for i in (0, 1)]
    np.testing.assert_array_equal(np.frombuffer(page.grid.frame, np.float32).reshape(2, 1, 2, 5, 5)[:, 0], expected)
    page.grid._receive(page.grid, {"command": "choose", "side": "right", "index": 2}, [])
    assert page.grid.about["shown"] == [0, 2]
    page.now.show_probe("Romeo")
    assert page.grid.about["tokens"] == list("Romeo")
    with pytest.raises(ValueError, match="no character"):
        page.now.show_probe("日本")
    assert page.now.probe == "Romeo"


@pytest.mark.parametrize("task", ["reverse", "digits"])
def test_lists_and_images_show_their_first_example(task):
    page = Page(
        [recipe("paper", "qkv", task=task, steps=2, width=16, heads=2, layers=1, batch=2, eval_rows=2, device="cpu")]
    )
    page.press("step")
    until(lambda: page.panel.status == "paused")
    assert len(page.grid.about["tokens"]) == page.grid.about["shape"][3] and not page.grid.about["causal"]


@pytest.mark.parametrize(
    "slug", ["qkv", "identity-q", "identity-k", "tie-qk", "tie-kv", "qkv+gqa2", "identity-q+gqa1", "identity-q+tie-kv"]
)
def test_head_symmetry_is_the_definition(slug):
    if slug.endswith("gqa1"):
        slug = slug.replace("gqa1", "mqa")
    model = Trainer(tiny(slug, heads=4, layers=2, positions="none", bias=True)).model
    for name, p in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(p, generator=torch.Generator().manual_seed(0))
    expected = []
    for block in model.layers():
        a = block.attention
        w = lambda m: np.eye(16) if m is None else m.weight.detach().double().numpy().T  # columns of head h: h*d_h ...
        k = w(a.W_K)
        q = k if a.variant.query == "key" else w(a.W_Q)
        share = 4 // a.kv_heads
        for h in range(4):
            g = h // share
            expected.append(symmetry(q[:, 4 * h : 4 * h + 4] @ k[:, 4 * g : 4 * g + 4].T))
    np.testing.assert_allclose(head_symmetry(model).ravel(), expected, atol=2e-6)
    if slug == "tie-qk":
        np.testing.assert_allclose(expected, 1)


def test_configs_that_differ_in_their_seed_are_one_arm():
    configs = [replace(c, seed=s) for s in (0, 1) for c in PAIR]
    assert [[c.seed for c in group] for group in arms(configs)] == [[0, 1], [0, 1]]
    assert [group[0].model.variant for group in arms(configs)] == ["qkv", "identity-q"]


def test_faces_say_where_arms_differ():
    four = [
        recipe("paper", slug, **own)
        for slug, own in map(parse_arm, ["qkv", "identity-q:logit_scale=2", "identity-q:mlp=4.5", "qkv:mlp=3.5"])
    ]
    found = faces(four)
    assert [f["label"] for f in found] == ["Q, K, V", "W_Q=I, scale 2", "W_Q=I, MLP ×4.5", "Q, K, V, MLP ×3.5"]
    assert len({(f["colour"], f["dash"]) for f in found}) == 4


def test_drawing_waits_until_it_has_been_earned():
    feed = _Feed(0.01, least=0)
    assert feed.due(0)  # the first time it costs nothing yet
    feed.spent, feed.cost = 0.02, 0.005
    assert not feed.due(2.4) and feed.due(2.5)

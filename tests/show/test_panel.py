"""The panel as Python sees it: what goes to a fresh view, what goes in a tick, what a page may ask for."""

import json

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from qkvlab.show.grid import face
from qkvlab.show.panel import COMMANDS, KEPT_ROWS, PINS, TrainingPanel


class Asked:
    def __init__(self):
        self.commands, self.runs = [], []

    def command(self, name):
        self.commands.append(name)

    def take_up(self, run_id):
        self.runs.append(run_id)


def rows(n, arms=2):
    steps = np.arange(1, n + 1, dtype=np.float32)[:, None]
    return np.hstack([steps, *[np.full((n, 3), arm) + steps / 8 for arm in range(arms)]]).astype(np.float32)


def begun(n=20):
    panel = TrainingPanel("lab")
    panel.begin(
        arms=[face("qkv"), face("identity-q")], total=n, seeds=3, rows=rows(n), validation=[[0, 10, 2, 1.5, 2.5]]
    )
    return panel


def test_a_fresh_view_gets_the_curves():
    panel = begun()
    kept = np.frombuffer(panel.get_state()["history"], np.float32).reshape(-1, 7)
    np.testing.assert_array_equal(kept, rows(20))


def test_long_curves_are_thinned_and_keep_both_ends():
    panel = begun(10 * KEPT_ROWS)
    kept = np.frombuffer(panel.history, np.float32).reshape(-1, 7)
    assert len(kept) == KEPT_ROWS
    assert kept[0, 0] == 1 and kept[-1, 0] == 10 * KEPT_ROWS
    assert (np.diff(kept[:, 0]) > 0).all()


def test_a_tick_is_the_rows_as_bytes_and_leaves_no_trait_behind(monkeypatch):
    panel, sent = begun(), []
    monkeypatch.setattr(panel, "send", lambda content, buffers=None: sent.append((content, buffers)))
    before = panel.get_state()
    panel.tick(rows(3), [[1, 3, 2.0, 2.0, 2.0]], step=3, rate=40.0)
    [(content, [data])] = sent
    np.testing.assert_array_equal(np.frombuffer(data, np.float32).reshape(-1, 7), rows(3))
    assert content["type"] == "tick" and content["step"] == 3 and content["validation"] == [[1, 3, 2.0, 2.0, 2.0]]
    assert panel.get_state() == before and panel.sent == len(data)
    json.dumps(content)


def test_begin_tells_every_view_to_start_over():
    panel = begun()
    epoch = panel.epoch
    panel.begin(arms=[face("qkv")], total=5)
    assert panel.epoch == epoch + 1 and panel.history == b"" and panel.validation == [] and panel.ended == []


def test_pinned_runs_are_numbered_and_the_oldest_goes():
    panel = begun()
    for _ in range(PINS + 2):
        panel.pin()
    assert [run["number"] for run in panel.pinned] == list(range(3, PINS + 3))
    arm = panel.pinned[-1]["arms"][1]
    assert arm["label"] == "W_Q=I" and arm["curve"][0] == [float(s) for s in range(1, 21)]
    assert arm["curve"][1] == [round(1 + s / 8, 4) for s in range(1, 21)]
    assert panel.pinned[-1]["arms"][0]["validation"] == [[10, 2, 1.5, 2.5]]
    json.dumps(panel.pinned)
    panel.controller = Asked()
    panel._receive(panel, {"command": "unpin", "argument": 3}, [])
    assert [run["number"] for run in panel.pinned] == list(range(4, PINS + 3))


def test_a_diverged_curve_can_be_pinned():
    panel = TrainingPanel()
    broken = rows(4, arms=1)
    broken[2:, 1:] = np.nan
    panel.begin(arms=[face("qkv")], total=4, rows=broken)
    panel.pin()
    assert panel.pinned[0]["arms"][0]["curve"][1][2:] == [None, None]


def test_nothing_to_pin():
    panel = TrainingPanel()
    panel.pin()
    assert panel.pinned == []


def test_buttons_reach_the_controller():
    panel = TrainingPanel()
    panel._receive(panel, {"command": "play"}, [])  # no controller yet: nothing happens
    panel.controller = Asked()
    for name in COMMANDS:
        panel._receive(panel, {"command": name, "argument": None}, [])
    panel._receive(panel, {"command": "hello", "argument": "0123456789abcdef"}, [])
    assert panel.controller.commands == list(COMMANDS) and panel.controller.runs == ["0123456789abcdef"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["command", "argument", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None, max_examples=100)
@given(json_values)
def test_a_page_can_send_anything(content):
    panel = TrainingPanel()
    panel.controller = Asked()
    panel._receive(panel, content, [])
    asked = panel.controller
    known = isinstance(content, dict) and content.get("command") in ("hello", *COMMANDS)
    assert known or (not asked.commands and not asked.runs)

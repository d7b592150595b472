"""`TrainingPanel`: the buttons, the loss curves and the state of a training run, drawn on canvas by panel.js.

It knows no trainer. A controller (`show/live.py`) is asked by `command`, and draws by `begin`, `tick` and `say`.
Two channels: new points travel as float32 bytes in messages (`tick`), which nobody keeps; what a fresh view needs (a
reloaded page, a second view) lies in traits that change a few times a run. Works in marimo and in Jupyter.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import anywidget
import numpy as np
import traitlets

HERE = Path(__file__).parent
COMMANDS = ("play", "pause", "step", "stop", "reset", "pin")
KEPT_ROWS = 500  # rows of the curves that a fresh view gets
PINS = 5


class Controller(Protocol):
    """What answers the buttons."""

    def command(self, name: str) -> None: ...
    def take_up(self, run_id: str) -> None: ...


class TrainingPanel(anywidget.AnyWidget):
    """Buttons, curves and words. `key` names the page: under it the browser tab remembers the run to take up again."""

    _esm = (HERE / "panel.js").read_text(encoding="utf-8")  # as text: for a Path anywidget keeps every widget for ever
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")

    key = traitlets.Unicode("").tag(sync=True)
    run_id = traitlets.Unicode("").tag(sync=True)
    arms: Any = traitlets.List().tag(sync=True)  # [{label, note, colour, dash, badge}]
    total = traitlets.Int(0).tag(sync=True)  # steps of the run
    unit = traitlets.Unicode("nats").tag(sync=True)
    seeds = traitlets.Int(1).tag(sync=True)
    epoch = traitlets.Int(0).tag(sync=True)  # goes up when the curves are to be drawn afresh
    status = traitlets.Unicode("empty").tag(sync=True)
    message = traitlets.Unicode("").tag(sync=True)
    finding = traitlets.Unicode("").tag(sync=True)  # the text alternative of the curves
    can = traitlets.List(traitlets.Unicode()).tag(sync=True)  # the commands that make sense now
    primary = traitlets.Unicode("Train").tag(sync=True)  # what the first button says
    history = traitlets.Bytes(b"").tag(sync=True)  # float32 (rows, 1 + 3 * arms): step, then mean, lowest, highest
    validation: Any = traitlets.List().tag(sync=True)  # [arm, step, mean, lowest, highest]
    ended: Any = traitlets.List().tag(sync=True)  # [arm, step, words] of what diverged
    moment = traitlets.Unicode("").tag(sync=True)  # when and how the run last rested: status, run, step
    heard = traitlets.Unicode("").tag(sync=True)  # the page's echo of it: marimo runs a cell on this, not on `moment`
    pinned: Any = traitlets.List().tag(sync=True)  # earlier runs

    def __init__(self, key: str = "", **traits: Any) -> None:
        super().__init__(key=key, **traits)
        self.controller: Controller | None = None
        self.sent = 0  # bytes of all ticks
        self._guard = threading.RLock()  # traits are set by the training thread and by the page
        self.on_msg(self._receive)

    def set_state(self, sync_data: Any) -> None:
        with self._guard:
            super().set_state(sync_data)

    def _receive(self, _widget: object, content: Any, _buffers: object) -> None:
        """A message of the page. Anything that is not one of ours is left alone: a page can send what it likes."""
        if not isinstance(content, dict) or self.controller is None:
            return
        name, argument = content.get("command"), content.get("argument")
        if name == "hello" and isinstance(argument, str):
            self.controller.take_up(argument)
        elif name == "unpin" and isinstance(argument, int):
            self.pinned = [run for run in self.pinned if run["number"] != argument]
        elif name in COMMANDS:
            self.controller.command(name)

    def begin(self, **traits: Any) -> None:
        """Clear the curves and set what comes next: arms, total, unit, seeds, run_id, rows, validation, ended."""
        rows = np.asarray(traits.pop("rows", []), np.float32)
        traits = {"validation": [], "ended": [], "finding": "", **traits}
        self._change(history=self._thin(rows), epoch=self.epoch + 1, **traits)

    def say(self, rows: np.ndarray | None = None, **traits: Any) -> None:
        """Change traits (status, message, can, ...) in one message; `rows`, where given, are all rows so far."""
        if rows is not None:
            traits["history"] = self._thin(rows)
        self._change(**traits)

    def tick(self, rows: np.ndarray, validation: Sequence[Sequence[float]], **words: Any) -> None:
        """New points: `rows` (n, 1 + 3 * arms) since the last tick, and new validation points."""
        data = np.ascontiguousarray(rows, np.float32).tobytes()
        self.sent += len(data)
        self.send({"type": "tick", "validation": list(validation), **words}, [data])

    def pin(self) -> None:
        """Keep the curves shown now, paler, below those of later runs. The oldest goes when there are too many."""
        rows = np.frombuffer(self.history, np.float32).reshape(-1, 1 + 3 * max(len(self.arms), 1))
        if not len(rows):
            return
        rows = rows[:: max(1, len(rows) // 200)]
        number = 1 + max((run["number"] for run in self.pinned), default=0)
        arms = [
            {
                **arm,
                "curve": [[None if np.isnan(v) else round(float(v), 4) for v in column] for column in columns],
                "validation": [point[1:] for point in self.validation if point[0] == index],
            }
            for index, arm in enumerate(self.arms)
            for columns in [[rows[:, 0], *rows[:, 1 + 3 * index : 4 + 3 * index].T]]
        ]
        self.pinned = [*self.pinned, {"number": number, "seeds": self.seeds, "arms": arms}][-PINS:]

    def _change(self, **traits: Any) -> None:
        with self._guard, self.hold_sync():
            for name, value in traits.items():
                setattr(self, name, value)

    @staticmethod
    def _thin(rows: np.ndarray) -> bytes:
        rows = np.asarray(rows, np.float32)
        if len(rows) > KEPT_ROWS:
            rows = rows[np.unique(np.linspace(0, len(rows) - 1, KEPT_ROWS).astype(int))]
        return rows.tobytes()

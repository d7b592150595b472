"""`AttentionGrid`: the attention maps of one or two models, every layer and head, drawn on canvas by grid.js.

    grid = AttentionGrid()
    grid.begin([face("qkv"), face("identity-q")])
    grid.show([maps_a, maps_b], tokens=list("To be"), symmetry=[sym_a, sym_b])      # maps (L, H, T, T), symmetry (L, H)

A frame travels as float32 bytes in a message; `show(..., keep=True)` leaves it in a trait too, for a later view.
Rows are queries, columns keys; one colour scale for all maps of a frame.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anywidget
import numpy as np
import traitlets

from qkvlab.models.variants import variant
from qkvlab.show.badge import badge_svg

HERE = Path(__file__).parent


def face(slug: str, label: str | None = None, colour: str | None = None, dash: str | None = None) -> dict[str, str]:
    """How a model looks in both widgets: badge, label, colour and dash of its variant, unless given."""
    v = variant(slug)
    return {"badge": badge_svg(v, 16), "label": label or v.label, "colour": colour or v.colour, "dash": dash or v.dash}


class AttentionGrid(anywidget.AnyWidget):
    """Maps of `models[left]` and, unless it is -1, `models[right]`. The reader chooses; `on_choose` is told."""

    _esm = (HERE / "grid.js").read_text(encoding="utf-8")  # as text: for a Path anywidget keeps every widget for ever
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")

    models: Any = traitlets.List().tag(sync=True)  # faces
    left = traitlets.Int(0).tag(sync=True)
    right = traitlets.Int(-1).tag(sync=True)
    epoch = traitlets.Int(0).tag(sync=True)  # goes up when the models change
    note = traitlets.Unicode("").tag(sync=True)  # said in place of maps while there are none
    about = traitlets.Dict().tag(sync=True)  # of the kept frame: shape, tokens, step, symmetry, shown, causal
    frame = traitlets.Bytes(b"").tag(sync=True)

    def __init__(self, **traits: Any) -> None:
        super().__init__(**traits)
        self.on_choose: Callable[[], None] | None = None
        self.sent = 0  # bytes of all frames
        self.on_msg(self._receive)

    def _receive(self, _widget: object, content: Any, _buffers: object) -> None:
        if not isinstance(content, dict) or content.get("command") != "choose":
            return
        side, index = content.get("side"), content.get("index")
        lowest = 0 if side == "left" else -1
        if side in ("left", "right") and isinstance(index, int) and lowest <= index < len(self.models):
            setattr(self, side, index)
            if self.on_choose:
                self.on_choose()

    def begin(self, models: Sequence[dict[str, str]], note: str = "") -> None:
        """Other models from now on. What was chosen stays chosen where there is such a model."""
        with self.hold_sync():
            self.left = min(self.left, len(models) - 1) if models else 0
            self.right = min(1, len(models) - 1) if self.right < 1 or self.right >= len(models) else self.right
            self.right = -1 if self.right == self.left and len(models) < 2 else self.right
            self.models, self.note, self.about, self.frame = list(models), note, {}, b""
            self.epoch += 1

    def shown(self) -> list[int]:
        """Indices of the models whose maps `show` expects, left first."""
        return [i for i in (self.left, self.right) if 0 <= i < len(self.models)]

    def show(
        self,
        maps: Sequence[np.ndarray],
        tokens: Sequence[str],
        *,
        causal: bool = True,
        symmetry: Sequence[np.ndarray] | None = None,
        step: int | None = None,
        keep: bool = False,
    ) -> None:
        """Draw `maps`, one (L, H, T, T) for each of `shown()`. `symmetry` is (L, H) each, from -1 to 1.

        Raises ValueError when the shapes of the maps, or the number of tokens, do not agree.
        """
        shapes = {np.shape(m) for m in maps}
        if len(shapes) != 1 or len(shape := shapes.pop()) != 4 or shape[2] != shape[3] or shape[2] != len(tokens):
            found = [np.shape(m) for m in maps]
            raise ValueError(
                f"maps of shape {found} with {len(tokens)} tokens: allowed is one shape (L, H, T, T), T tokens"
            )
        if len(maps) != len(self.shown()):
            raise ValueError(f"{len(maps)} maps, but {len(self.shown())} models are shown")
        data = np.stack([np.asarray(m, np.float32) for m in maps]).tobytes()
        about = {
            "shape": [len(maps), *shape[:3]],
            "tokens": list(tokens),
            "step": step,
            "symmetry": None if symmetry is None else [np.round(s, 3).tolist() for s in symmetry],
            "shown": self.shown(),
            "causal": causal,
        }
        self.sent += len(data)
        if keep:
            with self.hold_sync():
                self.about, self.frame = about, data
        else:
            self.send({"type": "maps", "epoch": self.epoch, **about}, [data])

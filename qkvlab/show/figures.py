"""Figures: pure functions from arrays to Plotly figures, each with a text alternative that states its finding.

    figures.show(figures.map_figure([("head 3", weights)], labels))           # in a notebook: figure + alternative
    figures.show(figures.loss_figure([Curve("Q, K, V", steps, losses)]), "QKV ends 0.02 nats lower.")   # with a finding

The functions know no page: background transparent, text mid-grey (readable on light and dark), Cividis for maps,
a diverging scale around zero for differences, one colour and dash for each variant from models/variants.py, no LaTeX
(Plotly would fetch MathJax), explicit x and y. The alternative lies in `fig.layout.meta["alt"]`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from qkvlab.models.variants import variant
from qkvlab.theory.measure import symmetry as symmetry_of

GREY = "#888888"
GRID = "rgba(128,128,128,0.22)"
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f")
DIVERGING = [[0, "#0072B2"], [0.5, "#f4f4f4"], [1, "#D55E00"]]
FONT = "ui-sans-serif, system-ui, sans-serif"
AXIS = {
    "gridcolor": GRID,
    "zerolinecolor": GRID,
    "linecolor": GRID,
    "ticks": "",
    "automargin": True,
    "fixedrange": True,
}
BAR = {"thickness": 9, "outlinewidth": 0, "lenmode": "pixels", "len": 150, "y": 1, "yanchor": "top", "xpad": 4}
CONFIG = {"displayModeBar": False, "responsive": True, "scrollZoom": False, "doubleClick": "reset"}


@dataclass(frozen=True)
class Curve:
    """A line: `x` (n,), `y` (n,) or (seeds, n), in which case the line is the mean and the band lowest to highest.

    `slug` gives the variant's colour and dash; `colour` and `dash` override them (two arms of one variant).
    A value that is not finite ends the line; with `diverged` the end wears a cross.
    """

    label: str
    x: ArrayLike
    y: ArrayLike
    slug: str = ""
    colour: str = ""
    dash: str = ""
    diverged: bool = False


def style(fig: go.Figure, height: int, alt: str) -> go.Figure:
    """The one layout of all figures, and the text alternative, for a figure with one pair of axes."""
    fig.update_layout(_layout(height, alt) | {"xaxis": AXIS, "yaxis": AXIS})
    return fig


def _layout(height: int, alt: str) -> dict[str, Any]:
    return {
        "height": height,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": GREY, "size": 12, "family": FONT},
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        "hoverlabel": {"font": {"family": FONT}},
        "dragmode": False,
        "hovermode": "closest",
        "template": {},  # Plotly's own is 7 kB a figure, and everything it says is said here
        "meta": {"alt": alt},
    }


def show(fig: go.Figure, alt: str = "", caption: str = "") -> Any:
    """The figure as marimo HTML with its alternative for screen readers; `alt` replaces the figure's own.

    `caption` is HTML shown under the figure: how to read it, in one sentence.
    """
    import marimo as mo

    words = escape(alt or (fig.layout.meta or {}).get("alt", ""))
    if not words:
        raise ValueError("a figure needs a text alternative that states its finding: show(fig, alt)")
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    # The height is known before Plotly draws, so that the text below does not jump.
    meta, height = fig.layout.meta or {}, fig.layout.height or 450
    style = f"--height: {height}px; --narrow: {meta.get('narrow', height)}px; max-width: {meta.get('widest', 864)}px"
    inner = f'<div role="img" aria-label="{words}" style="{style}">{mo.ui.plotly(fig, config=CONFIG).text}</div>'
    return mo.Html(f'<figure class="lab-figure">{inner}{below}</figure>')


def map_figure(
    maps: Sequence[tuple[str, ArrayLike]],
    labels: Sequence[str] | None = None,
    *,
    rows: Sequence[str] | None = None,
    difference: bool = False,
    limits: tuple[float, float] | None = None,
    symmetry: bool = False,
    unit: str = "weight",
    columns: int = 2,
    height: int | None = None,
    alt: str = "",
) -> go.Figure:
    """Maps (rows query, columns key) side by side on one scale, in one figure.

    `labels` name the columns, and the rows of a square map; `rows` name the rows of any. `difference`: diverging
    colours around zero. `limits`: the scale; by default the range of all maps, from 0 where nothing is negative.
    `symmetry`: the symmetry number (1 symmetric, -1 antisymmetric) under each title. Masked (not finite): empty.
    """
    if not maps:
        raise ValueError("map_figure needs at least one (title, map)")
    arrays = [np.asarray(m, dtype=float) for _, m in maps]
    for (name, _), a in zip(maps, arrays, strict=True):
        if a.ndim != 2 or len(labels or a[0]) != a.shape[1] or len(rows or a) != a.shape[0]:
            raise ValueError(f"map {name!r} has shape {a.shape}; it must be 2-D, with a label for each row and column")
    arrays = [np.where(np.isfinite(a), a, np.nan) for a in arrays]
    low, high = limits or _range(arrays, difference)
    numbers = [f"symmetry {symmetry_number(a):+.2f}" if symmetry else "" for a in arrays]
    columns = min(columns, len(maps))
    lines = -(-len(maps) // columns)
    width, depth = (1 - 0.05 * (columns - 1)) / columns, (1 - 0.16 * (lines - 1)) / lines
    # Plain dictionaries, checked once: several times faster than a call for each property.
    traces: list[dict[str, Any]] = []
    axes: dict[str, Any] = {}
    titles: list[dict[str, Any]] = []
    for i, ((name, _), a) in enumerate(zip(maps, arrays, strict=True)):
        square, n = a.shape[0] == a.shape[1], str(i + 1) if i else ""
        queries, keys = rows or (labels if square else None), labels
        left, top = (i % columns) * (width + 0.05), 1 - (i // columns) * (depth + 0.16)
        traces.append(
            {
                "type": "heatmap",
                "z": a,
                "x": list(range(a.shape[1])),
                "y": list(range(a.shape[0])),
                "xaxis": f"x{n}",
                "yaxis": f"y{n}",
                "zmin": low,
                "zmax": high,
                "colorscale": DIVERGING if difference else "Cividis",
                "showscale": i == 0,
                "colorbar": BAR,
                "hovertemplate": f"%{{y}} → %{{x}}<br>{unit} %{{z:.3g}}<extra>{escape(name)}</extra>",
                "hoverongaps": False,
            }
        )
        plain = AXIS | {"showgrid": False, "zeroline": False, "constrain": "domain", "automargin": False}
        across = {"domain": [left, left + width], "anchor": f"y{n}", "tickangle": -90} | _ticks(keys)
        down = {"domain": [top - depth, top], "anchor": f"x{n}", "autorange": "reversed", "constraintoward": "top"}
        down |= _ticks(queries) | ({"showticklabels": False} if i % columns else {})
        down |= {"scaleanchor": f"x{n}"} if square else {}
        axes |= {f"xaxis{n}": plain | across, f"yaxis{n}": plain | down}
        text = f"{name}<br><span style='font-size:11px'>{numbers[i]}</span>" if symmetry else name
        place = {"x": left + width / 2, "y": top, "xref": "paper", "yref": "paper", "xanchor": "center"}
        titles.append({"text": text, "showarrow": False, "yanchor": "bottom", "font": {"size": 13}} | place)
    words = "; ".join(_map_words(name, a, labels, n) for (name, _), a, n in zip(maps, arrays, numbers, strict=True))
    layout = _layout(height or 60 + 340 * lines, alt or words + ".")
    # Margins from the longest label: Plotly's own way is to draw every label several times and measure it.
    left = 8 + 6 * max(map(len, rows or (labels if labels and len(arrays[0]) == len(labels) else None) or [""]))
    layout["margin"] = {"l": left, "r": 52, "t": 52 if symmetry else 36, "b": 12 + 6 * max(map(len, labels or [""]))}
    if all(a.shape[0] == a.shape[1] for a in arrays) and lines == 1:  # squares: lower on a phone, not wider than high
        layout["meta"] |= {"narrow": 70 + 16 * symmetry + 300 // columns, "widest": 540 * columns}
    return go.Figure(traces, layout | axes | {"annotations": titles})


def _ticks(names: Sequence[str] | None) -> dict[str, Any]:
    if names is None:
        return {"showticklabels": False}
    return {"tickvals": list(range(len(names))), "ticktext": list(names), "tickfont": {"size": 10}}


def loss_figure(
    curves: Sequence[Curve],
    *,
    x_title: str = "step",
    y_title: str = "validation loss, nats",
    log_y: bool = False,
    log_x: bool = False,
    height: int = 340,
    alt: str = "",
) -> go.Figure:
    """Curves with a band from the lowest to the highest seed; a diverged run ends in a cross."""
    traces: list[dict[str, Any]] = []
    ends = []
    for i, curve in enumerate(curves):
        x, y = np.asarray(curve.x, dtype=float), np.atleast_2d(np.asarray(curve.y, dtype=float))
        if y.shape[1] != len(x):
            raise ValueError(f"curve {curve.label!r}: y has {y.shape[1]} points and x has {len(x)}")
        finite = np.isfinite(y).all(axis=0)
        x, y = x[finite], y[:, finite]
        if not len(x):
            continue
        v = variant(curve.slug) if curve.slug else None
        colour = curve.colour or (v.colour if v else OKABE_ITO[i % len(OKABE_ITO)])
        mean = y.mean(axis=0)
        one = {"type": "scatter", "legendgroup": str(i)}
        if len(y) > 1:
            band = {"x": np.concatenate([x, x[::-1]]), "y": np.concatenate([y.max(axis=0), y.min(axis=0)[::-1]])}
            looks = {"fill": "toself", "fillcolor": _faint(colour), "line": {"width": 0}, "mode": "lines"}
            traces.append(one | band | looks | {"hoverinfo": "skip", "showlegend": False})
        line = {"color": colour, "dash": curve.dash or (v.dash if v else "solid"), "width": 2.2}
        hover = f"{x_title} %{{x}}: %{{y:.4g}}<extra>{escape(curve.label)}</extra>"
        traces.append(
            one | {"x": x, "y": mean, "name": curve.label, "mode": "lines", "line": line, "hovertemplate": hover}
        )
        if curve.diverged:
            cross = {"symbol": "x", "size": 11, "color": colour, "line": {"width": 1, "color": GREY}}
            hover = f"diverged at {x_title} %{{x}}<extra>{escape(curve.label)}</extra>"
            end = {"x": x[-1:], "y": mean[-1:], "mode": "markers", "marker": cross}
            traces.append(one | end | {"hovertemplate": hover, "showlegend": False})
        ends.append(f"{curve.label} " + (f"diverges at {x[-1]:g}" if curve.diverged else f"ends at {mean[-1]:.4g}"))
    powers = {"exponentformat": "power"} if log_x or log_y else {}  # 10^6, not "1M"
    axes = {
        "xaxis": AXIS | powers | {"title": {"text": x_title}, "type": "log" if log_x else "linear"},
        "yaxis": AXIS | powers | {"title": {"text": y_title}, "type": "log" if log_y else "linear"},
    }
    return go.Figure(traces, _layout(height, alt or f"{y_title} against {x_title}: {'; '.join(ends)}.") | axes)


def bar_figure(
    names: Sequence[str], values: ArrayLike, *, y_title: str = "", colours: Sequence[str] = (), height: int = 260
) -> go.Figure:
    """Bars from zero, one for each name."""
    heights = np.asarray(values, dtype=float)
    if heights.shape != (len(names),):
        raise ValueError(f"{len(names)} names and values of shape {heights.shape}: one value for each name")
    bars = {"type": "bar", "x": list(range(len(names))), "y": heights, "width": 0.6, "customdata": list(names)}
    bars |= {
        "marker": {"color": list(colours) or OKABE_ITO[0]},
        "hovertemplate": "%{customdata}: %{y:.3g}<extra></extra>",
    }
    alt = f"{y_title}: " + ", ".join(f"{n} {v:.3g}" for n, v in zip(names, heights, strict=True)) + "."
    axes = {
        "xaxis": AXIS | _ticks(names) | {"showgrid": False, "zeroline": False},
        "yaxis": AXIS | {"title": {"text": y_title}, "rangemode": "tozero"},
    }
    return go.Figure([bars], _layout(height, alt) | axes)


def symmetry_number(a: ArrayLike) -> float:
    """`theory.measure.symmetry` of one map, from 1 (symmetric) to -1 (antisymmetric).

    Entries that are not finite (masked) are left out together with their mirror image.
    """
    a = np.asarray(a, dtype=float)
    return float(symmetry_of(np.where(np.isfinite(a) & np.isfinite(a.T), a, 0.0)))


def _range(arrays: Sequence[np.ndarray], difference: bool) -> tuple[float, float]:
    values = np.concatenate([a[np.isfinite(a)] for a in arrays] or [np.zeros(1)])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if difference:
        high = max(abs(low), abs(high)) or 1.0
        return -high, high
    low = min(low, 0.0) if low >= 0 else low
    return low, high if high > low else low + 1.0


def _map_words(name: str, a: np.ndarray, labels: Sequence[str] | None, extra: str) -> str:
    """Where a map is largest, and how symmetric it is: its finding without looking."""
    if not np.isfinite(a).any():
        return f"{name}: empty"
    row, column = (int(i) for i in np.unravel_index(np.nanargmax(a), a.shape))
    named = labels is not None and a.shape[0] == len(labels)
    pair = f"{labels[row]} to {labels[column]}" if named and labels else f"row {row} to column {column}"
    return f"{name}: largest value {np.nanmax(a):.3g}, from {pair}" + (f", {extra}" if extra else "")


def _faint(colour: str, alpha: float = 0.18) -> str:
    r, g, b = (int(colour.lstrip("#")[i : i + 2], 16) for i in (0, 2, 4))
    return f"rgba({r},{g},{b},{alpha})"

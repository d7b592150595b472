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
from plotly.subplots import make_subplots

from qkvlab.models.variants import variant

GREY = "#888888"
GRID = "rgba(128,128,128,0.22)"
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7f7f7f")
DIVERGING = [[0, "#0072B2"], [0.5, "#f4f4f4"], [1, "#D55E00"]]
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
    """The one layout of all figures, and the text alternative."""
    fig.update_layout(
        height=height,
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": GREY, "size": 12, "family": "ui-sans-serif, system-ui, sans-serif"},
        margin={"l": 8, "r": 8, "t": 28, "b": 8},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "xanchor": "left"},
        hoverlabel={"font": {"family": "ui-sans-serif, system-ui, sans-serif"}},
        dragmode=False,
        meta={"alt": alt},
    )
    fig.update_xaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID, automargin=True, fixedrange=True)
    fig.update_yaxes(gridcolor=GRID, zerolinecolor=GRID, linecolor=GRID, automargin=True, fixedrange=True)
    return fig


def show(fig: go.Figure, alt: str = "", caption: str = "") -> Any:
    """The figure as marimo HTML with its alternative for screen readers; `alt` replaces the figure's own.

    `caption` is HTML shown under the figure: how to read it, in one sentence.
    """
    import marimo as mo

    words = escape(alt or (fig.layout.meta or {}).get("alt", ""))
    if not words:
        raise ValueError("a figure needs a text alternative that states its finding: show(fig, alt)")
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    inner = mo.ui.plotly(fig, config=CONFIG).text
    return mo.Html(f'<figure class="lab-figure"><div role="img" aria-label="{words}">{inner}</div>{below}</figure>')


def map_figure(
    maps: Sequence[tuple[str, ArrayLike]],
    labels: Sequence[str] | None = None,
    *,
    difference: bool = False,
    limits: tuple[float, float] | None = None,
    symmetry: bool = False,
    unit: str = "weight",
    columns: int = 2,
    height: int | None = None,
    alt: str = "",
) -> go.Figure:
    """Maps (n x n or n x m; rows query, columns key) side by side on one scale, in one figure.

    `difference`: diverging colours around zero. `limits`: the scale; by default the common range of all maps, 0 to the
    largest where nothing is negative. `symmetry`: the symmetry number (1 symmetric, -1 antisymmetric) under each title.
    -inf (masked) stays empty.
    """
    if not maps:
        raise ValueError("map_figure needs at least one (title, map)")
    names = [name for name, _ in maps]
    arrays = [np.asarray(m, dtype=float) for _, m in maps]
    for name, a in zip(names, arrays, strict=True):
        if a.ndim != 2 or (labels is not None and len(labels) != a.shape[1]):
            raise ValueError(f"map {name!r} has shape {a.shape}; it must be 2-D with one column for each of the labels")
    arrays = [np.where(np.isfinite(a), a, np.nan) for a in arrays]
    low, high = limits or _range(arrays, difference)
    columns = min(columns, len(maps))
    rows = -(-len(maps) // columns)
    titles = [
        name + (f"<br><span style='font-size:11px'>symmetry {symmetry_number(a):+.2f}</span>" if symmetry else "")
        for name, a in zip(names, arrays, strict=True)
    ]
    fig = make_subplots(rows, columns, subplot_titles=titles, shared_yaxes=True, horizontal_spacing=0.04)
    for i, (name, a) in enumerate(zip(names, arrays, strict=True)):
        row, column = divmod(i, columns)
        queries = labels if labels is not None and len(labels) == a.shape[0] else range(a.shape[0])
        keys = labels if labels is not None else range(a.shape[1])
        fig.add_trace(
            go.Heatmap(
                z=a,
                x=list(range(a.shape[1])),
                y=list(range(a.shape[0])),
                zmin=low,
                zmax=high,
                colorscale=DIVERGING if difference else "Cividis",
                showscale=i == 0,
                colorbar={"thickness": 10, "outlinewidth": 0, "len": 0.8, "xpad": 4},
                text=[[f"{q} → {k}" for k in keys] for q in queries],
                hovertemplate=f"%{{text}}<br>{unit} %{{z:.3g}}<extra>{escape(name)}</extra>",
                hoverongaps=False,
                xgap=0.6,
                ygap=0.6,
            ),
            row + 1,
            column + 1,
        )
        fig.update_yaxes(autorange="reversed", constrain="domain", row=row + 1, col=column + 1)
        anchor = "" if i == 0 else str(i + 1)
        fig.update_xaxes(constrain="domain", scaleanchor=f"y{anchor}", row=row + 1, col=column + 1)
        if labels is not None:
            ticks = {"tickvals": list(range(len(labels))), "ticktext": list(labels), "tickfont": {"size": 10}}
            fig.update_xaxes(**ticks, tickangle=-90, row=row + 1, col=column + 1)
            fig.update_yaxes(**ticks, row=row + 1, col=column + 1)
    fig.update_annotations(font={"size": 13, "color": GREY})
    style(fig, height or 60 + 330 * rows, alt or _map_words(names, arrays, labels, symmetry))
    fig.update_layout(margin={"t": 48 if symmetry else 32})
    fig.update_xaxes(showgrid=False, zeroline=False)
    fig.update_yaxes(showgrid=False, zeroline=False)
    return fig


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
    fig = go.Figure()
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
        dash = curve.dash or (v.dash if v else "solid")
        mean = y.mean(axis=0)
        if len(y) > 1:
            fig.add_trace(
                go.Scatter(
                    x=np.concatenate([x, x[::-1]]),
                    y=np.concatenate([y.max(axis=0), y.min(axis=0)[::-1]]),
                    fill="toself",
                    fillcolor=_faint(colour),
                    line={"width": 0},
                    hoverinfo="skip",
                    showlegend=False,
                    legendgroup=str(i),
                )
            )
        fig.add_trace(
            go.Scatter(
                x=x,
                y=mean,
                name=curve.label,
                legendgroup=str(i),
                mode="lines",
                line={"color": colour, "dash": dash, "width": 2.2},
                hovertemplate=f"{x_title} %{{x}}: %{{y:.4g}}<extra>{escape(curve.label)}</extra>",
            )
        )
        if curve.diverged:
            fig.add_trace(
                go.Scatter(
                    x=x[-1:],
                    y=mean[-1:],
                    mode="markers",
                    marker={"symbol": "x", "size": 11, "color": colour, "line": {"width": 1, "color": GREY}},
                    hovertemplate=f"diverged at {x_title} %{{x}}<extra>{escape(curve.label)}</extra>",
                    showlegend=False,
                    legendgroup=str(i),
                )
            )
        ends.append(f"{curve.label} " + (f"diverges at {x[-1]:g}" if curve.diverged else f"ends at {mean[-1]:.4g}"))
    style(fig, height, alt or f"{y_title} against {x_title}: " + "; ".join(ends) + ".")
    fig.update_xaxes(title=x_title, type="log" if log_x else "linear")
    fig.update_yaxes(title=y_title, type="log" if log_y else "linear")
    if log_x or log_y:  # one label a power of ten; exponents, not "1M"
        fig.update_xaxes(exponentformat="power")
        fig.update_yaxes(exponentformat="power")
    return fig


def symmetry_number(a: ArrayLike) -> float:
    """(|S|^2 - |N|^2) / (|S|^2 + |N|^2) of the symmetric and antisymmetric parts S and N of a square map.

    1 symmetric, 0 neither, -1 antisymmetric. Masked entries (not finite) are left out together with their mirror image;
    a map of zeros counts as symmetric.
    """
    a = np.asarray(a, dtype=float)
    if a.ndim != 2 or a.shape[0] != a.shape[1]:
        raise ValueError(f"symmetry needs a square map, got shape {a.shape}")
    a = np.where(np.isfinite(a) & np.isfinite(a.T), a, 0.0)
    even, odd = np.sum((a + a.T) ** 2), np.sum((a - a.T) ** 2)
    return 1.0 if even + odd == 0 else float((even - odd) / (even + odd))


def _range(arrays: Sequence[np.ndarray], difference: bool) -> tuple[float, float]:
    values = np.concatenate([a[np.isfinite(a)] for a in arrays] or [np.zeros(1)])
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if difference:
        high = max(abs(low), abs(high)) or 1.0
        return -high, high
    low = min(low, 0.0) if low >= 0 else low
    return low, high if high > low else low + 1.0


def _map_words(names: Sequence[str], arrays: Sequence[np.ndarray], labels: Sequence[str] | None, symmetry: bool) -> str:
    """Where each map is largest, and how symmetric it is: a finding without looking."""
    words = []
    for name, a in zip(names, arrays, strict=True):
        if not np.isfinite(a).any():
            words.append(f"{name}: empty")
            continue
        row, column = (int(i) for i in np.unravel_index(np.nanargmax(a), a.shape))
        pair = (
            f"{labels[row]} to {labels[column]}"
            if labels is not None and a.shape[0] == len(labels)
            else f"row {row} column {column}"
        )
        extra = f", symmetry {symmetry_number(a):+.2f}" if symmetry else ""
        words.append(f"{name}: largest value {np.nanmax(a):.3g}, from {pair}{extra}")
    return "; ".join(words) + "."


def _faint(colour: str, alpha: float = 0.18) -> str:
    r, g, b = (int(colour.lstrip("#")[i : i + 2], 16) for i in (0, 2, 4))
    return f"rgba({r},{g},{b},{alpha})"

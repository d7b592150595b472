"""The badge of a variant: a small drawing made from its definition, the same in every lab, table and legend.

Three boxes, Q K V. Filled: learned. Hollow with an "I": the identity. Joined by a bar: one matrix serves both, and both
wear its colour. "x4" behind the boxes: the keys and values have 4 heads that the query heads share. A ring with a plus:
the 2-D positional term (X)+.
"""

import re
from html import escape

from qkvlab.models.variants import Variant
from qkvlab.models.variants import variant as find

FILL = {"Q": "#0072B2", "K": "#E69F00", "V": "#009E73"}
INK = {"Q": "#ffffff", "K": "#000000", "V": "#000000"}  # contrast at least 4.5 on its fill
_BOX, _STEP = 18, 24  # side of a box and distance between two, in units of the drawing (20 high)


def describe(variant: Variant | str) -> str:
    """The definition in plain words: what a screen reader says and what the badge's tooltip shows."""
    v = find(variant) if isinstance(variant, str) else variant
    parts = []
    for name, source in (("Q", v.query), ("K", v.key), ("V", v.value)):
        parts.append(
            {"own": f"{name} learned", "identity": f"{name} is the identity", "key": f"{name} tied to K"}[source]
        )
    if v.kv_heads is not None:
        parts.append(f"{v.kv_heads} shared key and value head" + "s" * (v.kv_heads != 1))
    if v.pos2d:
        parts.append("2-D positional term")
    return ", ".join(parts)


def badge_svg(variant: Variant | str, size: int = 20) -> str:
    """Inline SVG, `size` pixels high, of a variant or its slug; ValueError (from `variant`) for an unknown slug."""
    v = find(variant) if isinstance(variant, str) else variant
    parts, x = [], 1.0
    for name, source in (("Q", v.query), ("K", v.key), ("V", v.value)):
        matrix = "K" if source == "key" else name
        if source == "key":  # the bar to K: forward from Q, back from V
            bar = x + _BOX if name == "Q" else x - _STEP + _BOX
            parts.append(f'<rect x="{bar - 1:g}" y="7" width="{_STEP - _BOX + 2}" height="6" fill="{FILL["K"]}"/>')
        hollow = source == "identity"
        fill, ink = ("none", "currentColor") if hollow else (FILL[matrix], INK[matrix])
        parts.append(
            f'<rect x="{x:g}" y="1" width="{_BOX}" height="{_BOX}" rx="3" fill="{fill}" stroke="{FILL[matrix]}" '
            f'stroke-width="2"/><text x="{x + _BOX / 2:g}" y="14.6" text-anchor="middle" font-size="13" '
            f'font-weight="700" fill="{ink}">{"I" if hollow else name}</text>'
        )
        x += _STEP
    x -= _STEP - _BOX - 3
    if v.kv_heads is not None:
        text = f"×{v.kv_heads}"
        parts.append(f'<text x="{x:g}" y="14" font-size="11" font-weight="600" fill="currentColor">{text}</text>')
        x += 7 * len(text) + 2
    if v.pos2d:
        parts.append(
            f'<g fill="none" stroke="currentColor" stroke-width="1.8"><circle cx="{x + 8:g}" cy="10" r="6.5"/>'
            f'<path d="M{x + 4.5:g} 10h7M{x + 8:g} 6.5v7"/></g>'
        )
        x += 17
    words = escape(f"{v.label}: {describe(v)}")
    return (
        f'<svg class="badge" role="img" aria-label="{words}" viewBox="0 0 {x:g} 20" height="{size}" '
        f'width="{size * x / 20:.4g}" font-family="ui-sans-serif, system-ui, sans-serif"><title>{words}</title>'
        f"{''.join(parts)}</svg>"
    )


def badge_label(variant: Variant | str, size: int = 20) -> str:
    """HTML: the badge and the variant's short name behind it, for tables, legends and prose."""
    v = find(variant) if isinstance(variant, str) else variant
    name = re.sub(r"W_([QKV])", r"W<sub>\1</sub>", escape(v.label))
    return f'<span class="badge-label">{badge_svg(v, size)} <span>{name}</span></span>'

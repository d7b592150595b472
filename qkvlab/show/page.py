"""Settings that live in the address, so that a link reproduces a page, and controls that a teacher can hide.

head = mo.ui.slider(0, 11, value=page.number("head", 3, 0, 11), label="head", on_change=page.keep("head"))
page.controls(head=head, mask=mask)        # `?head=5` sets it; `?hide=mask` (comma separated) leaves it out
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import marimo as mo

jupyter = False  # True in a Jupyter twin (twin.start() says so): no address there, and links lead to .ipynb files


def address() -> Mapping[str, Any]:
    """What stands behind the ? of the page's address; nothing where there is no page (a script, a test)."""
    return mo.query_params().to_dict() if mo.running_in_notebook() else {}


def number(name: str, default: float, low: float, high: float) -> Any:
    """The number in the address under that name, within [low, high]; the default where there is none, or no number.

    An int when the default is one.
    """
    try:
        value = float(str(address().get(name)))
    except ValueError:
        return default
    if value != value:
        return default
    value = min(max(value, low), high)
    return round(value) if isinstance(default, int) else value


def choice(name: str, default: str, allowed: Sequence[str] | Mapping[str, str]) -> str:
    """The word in the address under that name when it is allowed, else the default.

    Of options {what a reader sees: word} it is what the reader sees.
    """
    value = str(address().get(name))
    if isinstance(allowed, Mapping):
        value = value if value in allowed.values() else default
        return next(seen for seen, word in allowed.items() if word == value)
    return value if value in allowed else default


def switch(name: str, default: bool) -> bool:
    """True for 1, true, on and yes in the address, False for any other word, the default where there is none."""
    value = address().get(name)
    return default if value is None else str(value).lower() in ("1", "true", "on", "yes")


def keep(name: str) -> Callable[[Any], None]:
    """An `on_change` that writes the control's value into the address."""

    def write(value: Any) -> None:
        if mo.running_in_notebook():
            mo.query_params().set(name, str(int(value) if isinstance(value, bool) else value))

    return write


def hidden(name: str) -> bool:
    """Whether the address hides that control: `?hide=mask,scale`."""
    return name in str(address().get("hide") or "").replace(" ", "").split(",")


def controls(**named: Any) -> mo.Html:
    """The controls in a row that wraps, without those that the address hides. They stand above what they change."""
    shown = "".join(f"<div>{mo.as_html(control).text}</div>" for name, control in named.items() if not hidden(name))
    return mo.Html(
        f'<div class="controls" role="group" aria-label="controls">{shown}</div>' if shown else "<div></div>"
    )

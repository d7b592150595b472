"""The labs of the course: what each asks and claims, and the head, outline and foot that every lab shares.

How a lab begins and ends (copy this; everything else between is yours):

    app = marimo.App(width="medium", css_file="lab.css", html_head_file="head.html", app_title="Three projections")

    with app.setup(hide_code=True):
        import marimo as mo
        from qkvlab.course import labs
        from qkvlab.show import badge, figures, page

    @app.cell(hide_code=True)
    def _():
        labs.outline("three_projections")       # a cell of its own: the list on the left
        return

    @app.cell(hide_code=True)
    def _():
        labs.header("three_projections")        # title, claim, minutes, what one needs, goals
        return
    ...
    @app.cell(hide_code=True)
    def _():
        labs.footer("three_projections")        # previous and next
        return

Prose: `labs.prose(r"...")` is `mo.md` that knows three signs. `\\WQ \\WK \\WV \\WO \\Th` in a formula are the matrices
in their colours; `[[softmax]]` or `[[softmax|softmaxes]]` is a term at its first use, with its glossary entry on hover,
focus and tap; `((three_projections))` is a link to a lab, or its name and "coming".
`labs.number("2.3e-15", "largest relative difference", "exact")` is the one number that matters, set large;
`labs.state("exact" | "within noise" | "fails")` a verdict in words: HTML both, for `mo.Html(...)` or inside prose.
`labs.box("claim", r"...")` is prose in a call-out (claim, predict, verdict, limit). Figures: `figures.show(fig)`.
Controls: `page.controls(head=slider)`, their first values from `page.number(...)`.

All of this is plainer in a Jupyter twin (`page.jupyter`), whose markdown cells have no style sheet and no script:
`labs.prose(..., twin=r"...")` says something else there, where the text would not be true.
"""

import functools
import re
from dataclasses import dataclass
from html import escape
from typing import Any
from urllib.parse import urlencode

import marimo as mo

from qkvlab.show import page

PARTS = {
    "start": "Before you begin",
    "algebra": "Part I · The algebra",
    "training": "Part II · Training without queries",
    "sharing": "Part III · Sharing projections",
    "play": "After the course",
}


@dataclass(frozen=True)
class Lab:
    """One lab. `claim` is one sentence that the lab shows to be true; `question` is what a reader asks before it."""

    number: int
    slug: str
    part: str
    title: str
    question: str
    claim: str
    minutes: int
    needs: str
    goals: tuple[str, ...] = ()
    written: bool = False

    @property
    def stem(self) -> str:
        return f"{self.number:02d}_{self.slug}"


# fmt: off
LABS: tuple[Lab, ...] = (
    Lab(0, "start_here", "start", "Start here",
        "What is this course about, and what can my machine do?",
        "One question runs through all labs: which of the query, key and value projections does attention "
        "need?", 5, "nothing yet", written=True),
    Lab(1, "three_projections", "algebra", "Three projections",
        "Are query, key and value three degrees of freedom?",
        "A head sees W_Q and W_K only through W_Q W_Kᵀ, and W_V and W_O only through W_V W_O: two "
        "circuits, not three freedoms.",
        30, "matrix products, the softmax", (
            "compute one attention head by hand, from the input to the mixed values",
            "say which entries of the four matrices a head cannot see, and count them",
            "tell a symmetric score map from a symmetric attention map",
            "read an attention map, and say what it does not show",
        ), written=True),
    Lab(2, "change_of_basis", "algebra", "A change of basis",
        "How can a matrix disappear and nothing change?",
        "Write the input in another basis and undo it in W_Q, W_K and W_V: attention computes the same "
        "function, and one of the three matrices can be the identity.",
        30, "lab 01, inverse of a matrix", (
            "prove the reparametrisation lemma in three lines",
            "remove W_Q, W_K or W_V from a head without changing its output",
            "predict how many digits a basis with a given condition number costs",
            "say what the lemma leaves open",
        ), written=True),
    Lab(3, "gauge_freedom", "algebra", "Gauge freedom",
        "How much of a head is invisible, whatever surrounds it?",
        "Without RoPE, a d_h × d_h block of every head's W_Q and of its W_V can be the identity, with any "
        "norms and skips.", 25, "lab 02"),
    Lab(4, "one_layer_for_free", "algebra", "One layer for free",
        "Can a whole network lose one query matrix?",
        "Without normalisation and with an untied read-out, one layer's W_Q can be the identity; with both "
        "skips, only one.", 25, "lab 02"),
    Lab(5, "every_layer", "algebra", "Every layer",
        "Can every layer lose its query matrix?",
        "Without normalisation and with a skip around attention only, every layer's W_Q can be the "
        "identity at once.", 25, "lab 04"),
    Lab(6, "normalisation", "algebra", "Normalisation",
        "Which changes of basis survive a norm?",
        "RMSNorm lets only orthogonal changes of basis through, so in a standard GPT W_Q = I is a restriction.",
        25, "lab 05, orthogonal matrices"),
    Lab(7, "swallow_the_skip", "algebra", "Swallow the skip",
        "Can an MLP imitate its own skip connection?",
        "A ReLU MLP of the same width absorbs its skip exactly when some of its units multiply to minus "
        "the identity: almost never.", 25, "lab 05"),
    Lab(8, "train_without_queries", "training", "Train without queries",
        "Does a real model miss its query matrix?",
        "A small GPT trains without W_Q; how close it comes depends first of all on the scale of its logits.",
        40, "lab 02; having trained a network once helps", (
            "train a GPT with and without W_Q on the same batches, and compare them fairly",
            "say what a quarter of the attention parameters buys when it is spent elsewhere",
            "explain why the logit scale must change when W_Q goes",
            "tell a difference from seed noise",
        ), written=True),
    Lab(9, "weight_decay", "training", "Weight decay",
        "Does a model without W_Q want less weight decay?",
        "The best weight decay belongs to a schedule and a learning rate: change those, and the comparison "
        "changes.", 30, "lab 08"),
    Lab(10, "nonlinear_queries", "training", "Nonlinear queries",
        "If a linear query is redundant, is a nonlinear one useful?",
        "A query X + N(X) is no change of basis: it adds functions, and has to earn its parameters against "
        "a tuned baseline.", 30, "lab 08"),
    Lab(11, "tied_projections", "sharing", "Tied projections",
        "Which two projections may be one?",
        "K = V halves the cache and keeps the scores free; Q = K saves no cache and makes the scores "
        "symmetric.", 35, "lab 01"),
    Lab(12, "breaking_symmetry", "sharing", "Breaking the symmetry",
        "What does a 2-D positional term add to symmetric scores?",
        "After the softmax a separable 2-D positional term is a temperature and one bias per key.", 30, "lab 11"),
    Lab(13, "vision", "sharing", "Vision",
        "Do images need three projections?",
        "On small images, variants with one, two and three projections end within about a hundredth of "
        "each other.", 30, "lab 11"),
    Lab(14, "kv_cache", "sharing", "The cache",
        "What does a token cost to remember?",
        "Per token and layer a cache holds two numbers for each key coordinate, one when K = V; sharing "
        "heads divides it again.", 25, "lab 11"),
    Lab(15, "keys_as_values", "sharing", "Keys as values",
        "When can keys serve as values without loss?",
        "A head can use its keys as values exactly when W_K and W_V read the same subspace; their cosine "
        "does not tell.", 25, "labs 03 and 11"),
    Lab(16, "linear_attention", "sharing", "Linear attention",
        "What is left of attention without the softmax?",
        "Kernelised attention is a recurrence; with Q = K = V one signal drives it, writes its state and "
        "reads it.", 30, "lab 11"),
    Lab(17, "playground", "play", "Playground",
        "What happens if I turn every dial?",
        "Every variant, task and dial of the course on one page, with the run exported as code.", 20, "any lab"),
)
# fmt: on

# One sentence each, for the first use of a term in a lab.
GLOSSARY = {
    "attention map": "The matrix of attention weights. Row i: how much token i takes from every token; it sums to 1.",
    "causal mask": "A token may look at itself and at earlier tokens only: later scores become minus infinity.",
    "circuit": "Two matrices that act as one product: W_Q W_Kᵀ decides where a head looks, W_V W_O what it writes.",
    "condition number": "How unevenly a matrix stretches space: its largest singular value divided by its smallest.",
    "degree of freedom": "An independent direction in which a function can change when its weights change.",
    "embedding": "The vector that stands for a token at the input of the network.",
    "float64": "Numbers with about 16 decimal digits; float32 has about 7, bfloat16 between 2 and 3.",
    "gauge": "A change of the weights that changes nothing the network computes.",
    "head": "One of H attentions that run side by side, each on its own d_h = d / H columns of the projections.",
    "hidden state": "The vector of a token between two layers of the network.",
    "key": "What a token offers to be found by: K = X W_K.",
    "logit": "A number before the softmax. In attention: a scaled score.",
    "perplexity": "The exponential of the loss in nats: between how many equally likely tokens the model hesitates.",
    "projection": "A learned matrix that turns the input into queries, keys or values.",
    "query": "What a token looks for: Q = X W_Q.",
    "reparametrisation": "Other weights for the same function.",
    "residual stream": "The sum that the skips carry from layer to layer; each sub-block reads it and adds to it.",
    "reversible": "A Markov chain with weights π and π_i A_ij = π_j A_ji: it looks the same forwards and backwards.",
    "row softmax": "Exponentiate every score and divide each row by its sum: the row becomes weights that add to 1.",
    "score": "The number q_i · k_j that says how well the query of token i matches the key of token j.",
    "seed noise": "How much the result moves when only the random seed changes.",
    "skip connection": "The branch that carries a sub-block's input around it and adds it to the output.",
    "softmax": "Exponentiate the numbers and divide by their sum: positive weights that add to 1.",
    "temperature": "A divisor of the scores: below 1 the softmax gets sharper, above 1 flatter.",
    "token": "A piece of text, here a word or a punctuation mark, that the model treats as one unit.",
    "value": "What a token hands over when it is looked at: V = X W_V.",
    "weight decay": "Shrinking every weight a little at each step of training.",
}

# The one set of colours of the four matrices and of the basis change (Okabe-Ito); lab.css and badge.py use the same.
COLOURS = {"Q": "#0072B2", "K": "#E69F00", "V": "#009E73", "O": "#CC79A7", "theta": "#D55E00"}
MATRICES = {m: rf"\textcolor{{{COLOURS[m]}}}{{W_{m}}}" for m in "QKVO"}
MATRICES["theta"] = rf"\textcolor{{{COLOURS['theta']}}}{{\Theta}}"

STATES = {
    "exact": ("exact", "exact up to rounding"),
    "within noise": ("noise", "holds within seed noise"),
    "fails": ("fails", "fails"),
}


def find(slug: str) -> Lab:
    """The lab of that slug ("three_projections") or stem ("01_three_projections"); ValueError names what there is."""
    for lab in LABS:
        if slug in (lab.slug, lab.stem):
            return lab
    raise ValueError(f"no lab {slug!r}; there are {', '.join(lab.slug for lab in LABS)}")


def link(slug: str, **settings: Any) -> str:
    """The address of a lab beside the one that is open, with sliders set, e.g. link("three_projections", head=3).

    Works in the gallery (`?file=01_x.py`) and keeps the folder where the open page has one (`?file=notebooks/00_x.py`).
    From a twin it leads to the twin beside it (`01_x.ipynb`), without settings.
    """
    if page.jupyter:
        return f"{find(slug).stem}.ipynb"
    here = str(page.address().get("file") or "")
    folder = here[: here.rfind("/") + 1]
    return "?" + urlencode({"file": f"{folder}{find(slug).stem}.py"} | settings, safe="/")


def anchor(slug: str, text: str = "") -> str:
    """HTML (markdown in a twin): a link to a lab, or its name and "coming" when it is not written yet."""
    lab = find(slug)
    text = escape(text or f"{lab.number:02d} {lab.title}")
    if page.jupyter:
        return f"[{text}]({link(slug)})" if lab.written else f"{text} (coming)"
    if not lab.written:
        return f'<span class="lab-coming">{text} <small>coming</small></span>'
    return f'<a href="{escape(link(slug))}" target="_self">{text}</a>'


def header(slug: str) -> mo.Html:
    """Title, claim, minutes, what one needs, and (folded) the goals."""
    lab = find(slug)
    if page.jupyter:
        goals = "".join(f"\n- {g}" for g in lab.goals)
        return _md(
            f"{PARTS[lab.part]} · lab {lab.number:02d} · {lab.minutes} minutes · you need: {lab.needs}\n\n# {lab.title}"
            f"\n\n> **{matrices(lab.claim)}**"
            + (goals and f"\n\n<details><summary>What you can do afterwards</summary>\n{goals}\n\n</details>")
        )
    goals = "".join(f"<li>{escape(g)}</li>" for g in lab.goals)
    if goals:
        goals = f'<details class="lab-goals"><summary>What you can do afterwards</summary><ul>{goals}</ul></details>'
    return _md(
        f'<p class="lab-kicker">{PARTS[lab.part]} · lab {lab.number:02d}</p>\n\n# {lab.title}\n\n'
        f'<p class="lab-claim">{matrices(lab.claim)}</p>\n'
        f'<p class="lab-meta"><span>{lab.minutes} minutes</span><span>you need: {escape(lab.needs)}</span></p>\n{goals}'
    )


def outline(slug: str) -> mo.Html:
    """The left side: the course, this lab's sections, the way back. The last expression of a cell of its own."""
    lab = find(slug)
    home = "" if lab.number == 0 else f'<p class="side-home">{anchor("start_here", "All labs")}</p>'
    name = mo.Html(f'<p class="side-title">qkvlab</p>{home}<p class="side-lab">{lab.number:02d} · {lab.title}</p>')
    return mo.sidebar([name, mo.outline()], width="15rem")


def footer(slug: str) -> mo.Html:
    """Links to the labs before and after; one that is not written yet is named, not linked."""
    here = find(slug).number
    cells = []
    for word, row in (("Previous", LABS[:here][::-1]), ("Next", LABS[here + 1 :])):
        if row:
            open_now = next((lab for lab in row if lab.written), row[0])
            onward = f"<br>open now: {anchor(open_now.slug)}" if open_now.written and open_now != row[0] else ""
            neighbour = f"<small>{word}</small><br>{anchor(row[0].slug)}{onward}"
            cells.append(neighbour if page.jupyter else f'<div class="lab-{word.lower()}">{neighbour}</div>')
    if page.jupyter:
        return _md("---\n\n" + "\n\n".join(cells))
    return _md(f'<nav class="lab-foot" aria-label="previous and next lab">{"".join(cells)}</nav>')


def course_map() -> mo.Html:
    """All labs by part: the question of each, a link (or "coming"), and its minutes."""
    html = text = ""
    for part, title in PARTS.items():
        rows = [
            (matrices(lab.question), f"{anchor(lab.slug)}{f' · {lab.minutes} min' if lab.written else ''}")
            for lab in LABS
            if lab.part == part and lab.number
        ]
        if rows:
            html += f"<h3>{title}</h3><ul>" + "".join(
                f'<li><span class="map-question">{question}</span><span class="map-lab">{where}</span></li>'
                for question, where in rows
            )
            html += "</ul>"
            text += f"\n### {title}\n\n" + "".join(f"- {question} {where}\n" for question, where in rows)
    if page.jupyter:
        return _md(text)
    return mo.Html(f'<nav class="course-map markdown prose dark:prose-invert" aria-label="all labs">{html}</nav>')


def prose(text: str, twin: str | None = None) -> mo.Html:
    """Markdown with matrices in their colours, glossary terms and links to labs: see the top of this file.

    `twin` is what a Jupyter twin says instead, where `text` is not true of it.
    """
    text = twin if page.jupyter and twin is not None else text
    text = re.sub(r"\\W([QKVO])(?![A-Za-z])", lambda m: MATRICES[m[1]], text)
    text = re.sub(r"\\Th(?![A-Za-z])", lambda m: MATRICES["theta"], text)
    text = re.sub(r"\[\[([^]|]+)\|?([^]]*)\]\]", lambda m: term(m[1], m[2]), text)
    text = re.sub(r"\(\(([a-z0-9_]+)\|?([^)]*)\)\)", lambda m: anchor(m[1], m[2]), text)
    return _md(text)


def _md(text: str) -> mo.Html:
    return mo.md(text) if page.jupyter else mo.Html(_html(text))  # every tag of a mo.md is checked in the browser


@functools.lru_cache(maxsize=2000)
def _html(text: str) -> str:
    return mo.md(text).text


class Box(mo.Html):
    """A call-out around prose. As markdown it is a quotation, its formulas on one line each: no > may get into them."""

    def __init__(self, kind: str, inside: mo.Html) -> None:
        super().__init__(f'<div class="{kind}">{inside.text}</div>')
        self.inside = inside

    def _repr_markdown_(self) -> str:
        text = re.sub(r"\$\$.*?\$\$|\$[^$]*\$", lambda m: " ".join(m[0].split()), f"{self.inside}", flags=re.S)
        return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def box(kind: str, text: str) -> mo.Html:
    """A call-out (claim, predict, verdict, limit) around `prose` text."""
    return Box(kind, prose(text))


def term(word: str, shown: str = "") -> str:
    """HTML: `shown` (or the word) with its glossary entry on hover, focus or tap. ValueError lists the glossary."""
    if word not in GLOSSARY:
        raise ValueError(f"{word!r} is not in the glossary; it has {', '.join(GLOSSARY)}")
    if page.jupyter:  # whose sanitiser leaves no more than this
        return f'<abbr title="{escape(GLOSSARY[word])}">{escape(shown or word)}</abbr>'
    return (
        f'<span class="term" tabindex="0" role="note" aria-label="{escape(word)}: {escape(GLOSSARY[word])}">'
        f'{escape(shown or word)}<span class="term-note" aria-hidden="true">{escape(GLOSSARY[word])}</span></span>'
    )


def state(verdict: str, word: str = "") -> str:
    """HTML: a verdict in words ("exact", "within noise", "fails"), coloured as well. `word` overrides the text."""
    if verdict not in STATES:
        raise ValueError(f"state {verdict!r}; allowed are {', '.join(STATES)}")
    css, words = STATES[verdict]
    return f'<span class="state state-{css}">{escape(word or words)}</span>'


def number(value: str, what: str, verdict: str = "", word: str = "") -> str:
    """HTML: the number that matters, large, what it is below it, and the verdict in words if there is one."""
    words = f" {state(verdict, word)}" if verdict else ""
    return f'<div class="big-number"><b>{escape(value)}</b><span>{what}{words}</span></div>'


def matrices(text: str) -> str:
    """HTML: plain text in which W_Q, W_K, W_V and W_O are set in their colours."""
    text = escape(text)
    for m in "QKVO":
        text = text.replace(f"W_{m}", f'<span class="{m.lower()}">W<sub>{m}</sub></span>')
    return text

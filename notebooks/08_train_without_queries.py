import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    css_file="lab.css",
    html_head_file="head.html",
    app_title="08 Train without queries",
)

with app.setup(hide_code=True):
    from html import escape
    from itertools import combinations

    import marimo as mo
    import numpy as np
    import plotly.graph_objects as go
    import torch

    from qkvlab import tasks
    from qkvlab.course import exercises, labs
    from qkvlab.models.cache import generate
    from qkvlab.models.transformer import GPT, ModelConfig, count_parameters
    from qkvlab.models.variants import variant
    from qkvlab.show import badge, figures, page
    from qkvlab.show.grid import AttentionGrid
    from qkvlab.show.live import Live
    from qkvlab.show.panel import TrainingPanel
    from qkvlab.training import experiments, runs
    from qkvlab.training.recipes import parse_arm, recipe
    from qkvlab.training.shipped import shipped


@app.function(hide_code=True)
def wide(table):
    """A markdown table that scrolls by itself where the page is narrow."""
    return mo.Html(f'<div class="scroll-x">{labs.prose(table).text}</div>')


@app.function(hide_code=True)
def legend(name):
    """A model's name as a Plotly legend sets it."""
    return name.replace("W_Q", "W<sub>Q</sub>")


@app.cell(hide_code=True)
def _():
    labs.outline("train_without_queries")
    return


@app.cell(hide_code=True)
def _():
    labs.header("train_without_queries")
    return


@app.cell(hide_code=True)
def _():
    labs.prose("""
    ## Which two have no query matrix?

    Four small GPTs learned to write Shakespeare, letter by letter. In two of them attention never had a query matrix: a
    quarter of its numbers was not there from the first step to the last. **Which two?**
    """)
    return


@app.cell(hide_code=True)
def _():
    run = shipped("without-queries")  # made by `qkvlab reproduce without-queries`
    fresh = shipped("without-queries-fresh")  # the same four on new seeds, with nothing left to choose
    NAMES = {
        arm: ", ".join([variant(arm.partition(":")[0]).label, *(f"MLP ×{v:g}" for v in parse_arm(arm)[1].values())])
        for arm in run.arms
    }
    return NAMES, fresh, run


@app.cell(hide_code=True)
def _(run):
    _curves = [run.curve(arm) for arm in run.arms]
    figures.show(
        figures.loss_figure(
            [
                figures.Curve(f"model {_letter}", _steps, _losses, colour="#888888", dash=_dash)
                for _letter, (_steps, _losses), _dash in zip(
                    "ABCD", _curves, ["solid", "dot", "dash", "longdash"], strict=True
                )
            ],
            y_title="validation loss, nats per character",
        ),
        "Validation loss of four unnamed models over training. The four curves run so close together that they are hard to tell apart.",
        caption=f"Loss on text that no model has seen, mean of {len(run.seeds)} seeds. The names come later in this lab.",
    )
    return


@app.cell(hide_code=True)
def _():
    GUESSES = [
        "clearly worse: more than 0.1 nats",
        "a little worse: 0.01 to 0.1 nats",
        "the same: within 0.01 nats",
        "better: by more than 0.01 nats",
    ]
    guess = exercises.predict(
        "Take one model with a query matrix and one without, the same width, the same steps, each tuned on its own. "
        "The one without will be",
        GUESSES,
    )
    guess
    return GUESSES, guess


@app.cell(hide_code=True)
def _(guess):
    mo.md(
        "*Choose one. A wrong guess costs nothing, and the end of this lab comes back to it.*"
        if guess.value is None
        else "*Noted. The end of this lab comes back to it.*"
    )
    return


@app.cell(hide_code=True)
def _():
    mo.vstack(
        [
            labs.prose(r"""
    ## What is claimed

    ((change_of_basis|Lab 02)) made $\WQ$ disappear from a head by a change of basis. That needs the rest of the network to follow, and
    with LayerNorm and a [[skip connection|skip]] around both sub-blocks it cannot follow everywhere. So a GPT *trained* without
    $\WQ$ is another model, not the same one written differently. Paper A, Karbevski and Mijoski (2025), trained it all the same.
    """),
            labs.box(
                "claim",
                r"""
    **Claim 8.1.** Take a GPT of width $d$ with LayerNorm before each sub-block and MLPs $4d$ wide, and set $\WQ = I$ in every layer.

    1. It loses $d^2$ parameters a layer: $d^2$ of $4d^2$ in attention, 25 %, and $d^2$ of $12d^2$ in the block, 8.33 %.
    2. It is a restriction. Head $h$ asks with $d_h$ fixed coordinates of its input, so only $d_h$ rows of its [[circuit]]
       $\WQ^h \WK^{h\top}$ can differ from zero.
    3. Before the first step its queries are larger by the factor $1/(\sigma\sqrt d)$, where $\sigma$ is the standard deviation of the
       initial weights. So are its attention [[logit|logits]], unless their scale changes.
    """,
            ),
            labs.prose(r"""
    Points 1 and 3 are in its section 5, which halves the scale because $\sigma\sqrt d = 0.02\sqrt{768} = 0.554$. Point 2
    is arithmetic. None of its theorems covers this network: all of them need a network without normalisation.
    """),
        ],
        gap=0,
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose("""
    ## Check it

    The counts follow from the shapes. The spread you can measure: build one layer, give it a line of text, look at its queries. Move the width,
    then switch the initial spread to GPT-2's own 0.02, and see for which width halving is the right thing to do.
    """)
    return


@app.cell(hide_code=True)
def _():
    _widths = [32, 64, 128, 256, 384, 512, 768, 1024]
    _width = page.number("d", 128, 32, 1024)
    d_check = mo.ui.slider(
        steps=_widths,
        value=min(_widths, key=lambda w: abs(w - _width)),
        label="width d",
        show_value=True,
        debounce=True,
        on_change=page.keep("d"),
    )
    _spreads = ["0.554/√d, as in this course", "0.02, as in GPT-2"]
    sigma_check = mo.ui.dropdown(
        _spreads,
        value=page.choice("sigma", _spreads[0], _spreads),
        label="initial spread σ",
        on_change=page.keep("sigma"),
    )
    return d_check, sigma_check


@app.cell(hide_code=True)
def _(d_check, sigma_check):
    page.controls(d=d_check, sigma=sigma_check)
    return


@app.cell
def _(d_check, sigma_check):
    def spread(slug, d, sigma):
        """Standard deviation of the queries and of the logits of an untrained layer, over a line of text."""
        text = tasks.load("shakespeare")
        model = GPT(ModelConfig(variant=slug, layers=1, width=d, heads=4, init_std=sigma), text.inputs)
        model.init_weights(seed=0)
        block = model.blocks[0]
        with torch.no_grad():
            x = block.norm_1(
                model.embedded(torch.tensor([text.encode("To be, or not to be, that is the question:")]))
            )  # (1, T, d)
            q, k, _ = block.attention.project(x)  # (1, H, T, d_h); without W_Q, q is x itself
            logits = block.attention.scale * q @ k.mT  # (1, H, T, T)
        return q.std().item(), logits.std().item()

    sigma = 0.02 if sigma_check.value.startswith("0.02") else None
    with_q, without_q = spread("qkv", d_check.value, sigma), spread("identity-q", d_check.value, sigma)
    return spread, with_q, without_q


@app.cell(hide_code=True)
def _(d_check, with_q, without_q):
    _d = d_check.value
    _matching = with_q[0] / without_q[0]
    _ok = 0.4 < _matching < 0.6
    _rows = [("qkv", 4.0), ("identity-q", 4.0), ("identity-q", 4.5), ("qkv", 3.5)]
    _lines = []
    with torch.device("meta"):
        for _slug, _mlp in _rows:
            _model = GPT(ModelConfig(variant=_slug, layers=4, width=_d, heads=4, mlp=_mlp, context=64), 78)
            _without, _all = count_parameters(_model), count_parameters(_model, embeddings=True)
            _note = f", MLP ×{_mlp:g}" if _mlp != 4 else ""
            _name = f'<span class="badge-label">{badge.badge_svg(_slug, 16)} <span>{labs.matrices(variant(_slug).label)}{_note}</span></span>'
            _lines.append(f"| {_name} | {_without:,} | {8 * _all / 1e6:.2f} MB |")
    mo.vstack(
        [
            mo.md(
                labs.number(
                    f"{_matching:.2f}",
                    f"the logit scale that makes both start alike at d = {_d}. "
                    f"Queries spread {with_q[0]:.3f} with a matrix, {without_q[0]:.3f} without",
                    "exact" if _ok else "fails",
                    "paper A's ½ fits" if _ok else "paper A's ½ does not fit",
                )
            ),
            labs.prose(
                f"At scale 1 the logits spread {with_q[1]:.2f} with $\\WQ$ and {without_q[1]:.2f} without. What the models weigh:"
            ),
            wide(
                "| four layers, 78 characters | parameters without embeddings | optimiser memory (AdamW) |\n|:--|--:|--:|\n"
                + "\n".join(_lines)
            ),
            labs.prose(
                "AdamW keeps two numbers for each parameter. The four arms are two pairs of equal size: a fair comparison needs both."
            ),
        ],
        gap=0.6,
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    The initial scale is only where training starts. Which scale is *best* is another question, and a short one: train and look. For that there
    is the next section.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Play: train them yourself

    Choose the models and press *Train*. The recipe `paper` is paper A's, scaled down; `fast` is a newer one for a short class. All models
    see the same batches and start from the same numbers wherever they have a matrix in common. Two models of 600 steps took a minute and a
    half on two cores of a small server; the panel says how long yours have left. The page stays alive meanwhile: pause, look at the maps, go
    on. *Pin* keeps curves to compare with the next run, *Late steps* enlarges the end of them.
    """)
    return


@app.cell(hide_code=True)
def _():
    ARMS = {
        "qkv": "",
        "identity-q": "",
        "identity-q:mlp=4.5": "MLP ×4.5",
        "qkv:mlp=3.5": "MLP ×3.5",
        "tie-kv": "",
        "identity-q+tie-kv": "",
    }
    _on = str(page.address().get("models") or "qkv,identity-q").replace(" ", "+").split(",")
    _boxes = {
        f"m{i}": mo.ui.checkbox(
            value=arm in _on,
            label=f"{badge.badge_svg(arm.partition(':')[0], 16)} {labs.matrices(variant(arm.partition(':')[0]).label)}"
            + (f", {note}" if note else ""),
        )
        for i, (arm, note) in enumerate(ARMS.items())
    }
    models = mo.Html(
        '<div class="controls" role="group" aria-label="models to train">'
        + "".join(f"<div>{{{n}}}</div>" for n in _boxes)
        + "</div>"
    ).batch(**_boxes)
    return ARMS, models


@app.cell(hide_code=True)
def _():
    _scales = [0.25, 0.5, 1.0, 2.0, 4.0, 8.0]
    _scale = page.number("scale", 1.0, 0.25, 8.0)
    recipe_name = mo.ui.dropdown(
        ["paper", "fast"],
        value=page.choice("recipe", "paper", ["paper", "fast"]),
        label="recipe",
        on_change=page.keep("recipe"),
    )
    scale = mo.ui.slider(
        steps=_scales,
        value=min(_scales, key=lambda s: abs(s - _scale)),
        label=r"logit scale without $W_Q$",
        show_value=True,
        debounce=True,
        on_change=page.keep("scale"),
    )
    steps = mo.ui.number(
        start=10,
        stop=100_000,
        step=10,
        value=page.number("steps", 600, 10, 100_000),
        label="steps",
        on_change=page.keep("steps"),
    )
    seeds = mo.ui.number(
        start=1, stop=8, step=1, value=page.number("seeds", 1, 1, 8), label="seeds", on_change=page.keep("seeds")
    )
    everywhere = mo.ui.switch(
        value=page.switch("everywhere", False),
        label="the same logit scale for every model",
        on_change=page.keep("everywhere"),
    )
    decay = mo.ui.slider(
        steps=[0, 0.01, 0.03125, 0.1, 0.3],
        value=min([0, 0.01, 0.03125, 0.1, 0.3], key=lambda w: abs(w - page.number("decay", 0.1, 0, 0.3))),
        label=r"weight decay (paper A: 0.1 with $W_Q$, 0.03125 without)",
        show_value=True,
        debounce=True,
        on_change=page.keep("decay"),
    )
    width = mo.ui.number(
        start=4,
        stop=4096,
        step=4,
        value=page.number("width", 128, 4, 4096),
        label="width d",
        on_change=page.keep("width"),
    )
    heads = mo.ui.number(
        start=1, stop=64, step=1, value=page.number("heads", 4, 1, 64), label="heads H", on_change=page.keep("heads")
    )
    _devices = [
        "cpu",
        *(["cuda"] if torch.cuda.is_available() else []),
        *(["mps"] if torch.backends.mps.is_available() else []),
    ]
    device = mo.ui.dropdown(
        _devices, value=page.choice("device", _devices[-1], _devices), label="device", on_change=page.keep("device")
    )
    SIZES = {
        "as set here": {},
        "10 M parameters: 6 layers of 384, 2,000 steps": {"layers": 6, "heads": 6, "width": 384, "context": 256, "batch": 64, "steps": 2000},
        "85 M parameters, paper A's shape: 12 layers of 768, 5,000 steps": {
            "layers": 12, "heads": 12, "width": 768, "context": 512, "batch": 32, "steps": 5000, "lr": 6e-4,
        },
    }  # fmt: skip
    size = mo.ui.dropdown(
        list(SIZES), value=page.choice("size", "as set here", list(SIZES)), label="size", on_change=page.keep("size")
    )
    return SIZES, decay, device, everywhere, heads, recipe_name, scale, seeds, size, steps, width


@app.cell(hide_code=True)
def _(decay, device, everywhere, heads, models, recipe_name, scale, seeds, size, steps, width):
    _gpu = len(device.options) > 1
    _folded = {"everywhere": everywhere, "decay": decay, "width": width, "heads": heads}
    _note = "" if _gpu else '<p class="lab-note">torch finds no GPU on this machine: models train on the processor.</p>'
    mo.vstack(
        [
            page.controls(models=models),
            page.controls(recipe=recipe_name, scale=scale, steps=steps, seeds=seeds),
            mo.accordion(
                {
                    "More settings: width, heads, weight decay, device": mo.vstack(
                        [page.controls(**_folded, **({"device": device, "size": size} if _gpu else {})), mo.Html(_note)]
                    ),
                    "How to keep these settings": labs.prose(
                        "The address in your browser holds every setting of this page. Send it, and others open what you see. Add "
                        "`&hide=scale,decay` to leave controls out; their names are models, recipe, scale, steps, seeds, everywhere, "
                        "decay, width, heads, device, size.",
                        twin="A notebook has no address that holds them. Change the first values in the cells of the controls (after "
                        "`page.number` and its like), run these cells, and save.",
                    ),
                }
            ),
        ],
        gap=0.2,
    )
    return


@app.cell(hide_code=True)
def _(ARMS, SIZES, decay, device, everywhere, heads, models, recipe_name, run, scale, seeds, size, steps, width):
    configs, problem = [], ""
    try:
        if None in (steps.value, seeds.value, width.value, heads.value):
            raise ValueError("a number is missing")
        for _arm, _on in zip(ARMS, models.value.values(), strict=True):
            _slug, _own = parse_arm(_arm)
            _settings = {
                "steps": steps.value,
                "width": width.value,
                "heads": heads.value,
                "logit_scale": scale.value if everywhere.value or variant(_slug).query == "identity" else 1.0,
                "eval_every": max(5, steps.value // 16),
                "device": device.value,
                **(
                    {
                        "lr": run.chosen["qkv"]["lr"],
                        "batch": run.config("qkv").batch,
                        "weight_decay": decay.value,
                    }
                    if recipe_name.value == "paper"
                    else {}
                ),
                **SIZES[size.value],
                **_own,
            }
            configs += [
                recipe(recipe_name.value, _slug, seed=_seed, **_settings) for _seed in range(seeds.value) if _on
            ]
        problem = "" if configs else "Choose at least one model."
    except ValueError as _error:
        configs, problem = [], f"These settings do not fit together: {_error}."
    page.keep("models")(",".join(a for a, on in zip(ARMS, models.value.values(), strict=True) if on))
    return configs, problem


@app.cell(hide_code=True)
def _(problem, recipe_name):
    _hint = (
        "Under `fast`, QK-norm gives every query and key the same length, with $W_Q$ or without. Both start with equally large logits, so "
        "`fast` hides what this lab asks about. Use `paper` to see it. `fast` has no weight decay, so that slider does nothing here."
    )
    mo.vstack(
        [
            *(
                [mo.callout(mo.md(f"{problem} Nothing is lost: the panel keeps the settings it had."), kind="warn")]
                if problem
                else []
            ),
            *([mo.callout(mo.md(_hint), kind="info")] if recipe_name.value == "fast" else []),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    panel, grid = TrainingPanel("train_without_queries"), AttentionGrid()
    return grid, panel


@app.cell(hide_code=True)
def _(panel):
    panel_view = mo.ui.anywidget(panel)
    panel_view
    return (panel_view,)


@app.cell(hide_code=True)
def _(configs, grid, panel):
    if configs:
        Live(configs, panel, grid, runs.runs_dir())  # it waits for the panel's Train button
    attached = True
    return (attached,)


@app.cell(hide_code=True)
def _():
    prompt = mo.ui.text(
        value=str(page.address().get("prompt") or "To be, or not to be, that is"),
        label="a text for the maps, which a paused model continues",
        full_width=True,
        on_change=page.keep("prompt"),
    )
    prompt
    return (prompt,)


@app.cell(hide_code=True)
def _(attached, panel, prompt):
    _ = attached
    text, unreadable = prompt.value, ""
    try:
        if not tasks.load("shakespeare").encode(text):
            raise ValueError("the text is empty: type at least one character")
    except ValueError as _error:
        text, unreadable = "To be, or not to be, that is", str(_error)
    if panel.controller:
        panel.controller.show_probe(text)
    unreadable = escape(unreadable[:1].upper() + unreadable[1:].partition("; it has")[0])
    mo.callout(mo.md(f"{unreadable}. The maps use *{text}* instead."), kind="warn") if unreadable else None
    return (text,)


@app.cell(hide_code=True)
def _(grid):
    mo.ui.anywidget(grid)
    return


@app.cell(hide_code=True)
def _(panel, panel_view, text):
    _ = panel_view.value  # changes when a run pauses or ends
    _live = panel.controller
    _columns = []
    if _live is not None and _live.status not in ("starting", "waiting", "running"):
        with _live.hold():
            for _label, _trainer in _live.models():
                _ids = torch.tensor([_trainer.task.encode(text)], device=_trainer.device)
                try:
                    _new = generate(_trainer.model, _ids, 200, temperature=0.8)[0, _ids.shape[1] :]
                    _more = _trainer.task.decode(_new.tolist())
                except ValueError as _error:  # weights lost to a divergence
                    _more = f" ({_error})"
                _columns.append((_label, _trainer.step, _more))
    mo.Html(
        '<div class="continued" style="display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,17rem),1fr));gap:1rem">'
        + "".join(
            f"<figure><figcaption>{labs.matrices(label)}, after {step} steps</figcaption>"
            f'<pre style="white-space:pre-wrap;font-size:0.85rem;line-height:1.5"><b>{escape(text)}</b>{escape(more)}</pre></figure>'
            for label, step, more in _columns
        )
        + "</div>"
        if _columns
        else '<p class="lab-note">What each model writes appears here when a run pauses or ends.</p>'
    )
    return


@app.cell(hide_code=True)
def _(NAMES, fresh, run):
    _letters = "; ".join(
        f"{_letter} is {labs.matrices(NAMES[_arm])}" for _letter, _arm in zip("ABCD", run.arms, strict=True)
    )
    labs.prose(rf"""
    ## What the paper found, what we find

    Here are the names: {_letters}. Each of the four had its learning rate tuned, on a seed that is not shown, and then ran to the end of
    its schedule. The logit scale was tuned for A and B; C takes that of B, and D that of A. The curves below are of the first {len(run.seeds)} seeds.
    The numbers after them are of {len(fresh.seeds)} others, trained when nothing was left to choose: seeds, rates, scales, steps and the question
    were written down before the first of them began.
    """)
    return


@app.cell(hide_code=True)
def _(NAMES, run):
    _ends = {arm: np.nanmean(run.final(arm)) for arm in run.arms}
    figures.show(
        figures.loss_figure(
            [
                figures.Curve(
                    legend(NAMES[_arm]),
                    *run.curve(_arm),
                    slug=_arm.partition(":")[0],
                    dash="dot" if ":" in _arm else "solid",
                )
                for _arm in run.arms
            ],
            y_title="validation loss, nats per character",
        ),
        "Validation loss over training. At the end: "
        + ", ".join(f"{NAMES[a]} {v:.3f}" for a, v in _ends.items())
        + ".",
        caption="The four models of the first figure. Line: mean of the seeds. Band: lowest to highest seed.",
    )
    return


@app.cell(hide_code=True)
def _(NAMES, fresh):
    PAPER = {
        "qkv": 3.016,
        "identity-q": 3.018,
        "identity-q:mlp=4.5": 3.004,
        "qkv:mlp=3.5": 3.026,
    }  # 124 M, one seed, nats per token
    table = {arm.label: arm for arm in fresh.table()}
    _lines = []
    for _arm, _row in table.items():
        _slug, _tuned = _arm.partition(":")[0], fresh.chosen[_arm]
        _gap = (
            "reference" if _row.difference is None else f"{_row.difference:+.4f}\u00a0±\u00a0{_row.interval or 0:.4f}"
        )
        _theirs = PAPER[_arm] - PAPER["qkv"]
        _rest = NAMES[_arm].removeprefix(variant(_slug).label)
        _lines.append(
            f'| <span class="badge-label">{badge.badge_svg(_slug, 16)} <span>{labs.matrices(variant(_slug).label)}{_rest}</span></span> | '
            f"{PAPER[_arm]:.3f} | "
            f"{'reference' if not _theirs else f'{_theirs:+.3f}'} | {_row.parameters:,} | {_row.mean:.4f}\u00a0±\u00a0{_row.spread or 0:.4f} | {_gap} | "
            f"{_tuned['logit_scale']:g} | {_tuned['lr']:g} |"
        )
    mo.vstack(
        [
            wide(
                "| model | paper A: loss | difference | ours: parameters | loss ± spread over seeds | difference, 95 % | logit scale | learning rate |\n"
                "|:--|--:|--:|--:|--:|--:|--:|--:|\n" + "\n".join(_lines)
            ),
            labs.prose(
                f"Paper A: 124 M parameters, OpenWebText, nats per token, one seed. Ours: {len(fresh.seeds)} seeds, Shakespeare, nats per "
                "character. Losses of different texts do not compare; signs and ranks of differences do. A difference is taken seed by "
                "seed; its interval covers the true one with 95 % (Student's t)."
            ),
        ],
        gap=0.6,
    )
    return PAPER, table


@app.cell(hide_code=True)
def _(NAMES, PAPER, fresh, table):
    _fig, _words = go.Figure(), []
    _others = [arm for arm in fresh.arms if arm != "qkv"]
    for _i, _arm in enumerate(_others):
        _v, _row = variant(_arm.partition(":")[0]), table[_arm]
        _pairs = fresh.final(_arm) - fresh.final("qkv")
        _colour = _v.colour if _v.slug != "qkv" else "#7f7f7f"
        _fig.add_scatter(
            x=_pairs, y=[_i + 0.12] * len(_pairs), mode="markers", marker={"color": _colour, "size": 8, "opacity": 0.6},
            name="each seed", legendgroup="seed", showlegend=_i == 0, hovertemplate="%{x:+.4f}<extra>one seed</extra>",
        )  # fmt: skip
        _fig.add_scatter(
            x=[_row.difference], y=[_i], mode="markers", marker={"color": _colour, "size": 13, "symbol": "diamond"},
            error_x={"array": [_row.interval or 0], "color": _colour, "thickness": 2}, name="mean, 95 %", legendgroup="mean",
            showlegend=_i == 0, hovertemplate="%{x:+.4f}<extra>mean</extra>",
        )  # fmt: skip
        _fig.add_scatter(
            x=[PAPER[_arm] - PAPER["qkv"]], y=[_i - 0.12], mode="markers", name="paper A, one seed", legendgroup="paper",
            marker={"color": "#888888", "size": 11, "symbol": "x-thin", "line": {"width": 2, "color": "#888888"}}, showlegend=_i == 0,
            hovertemplate="%{x:+.3f}<extra>paper A</extra>",
        )  # fmt: skip
        _words.append(
            f"{NAMES[_arm]} {_row.difference:+.4f} plus or minus {_row.interval or 0:.4f}, paper A {PAPER[_arm] - PAPER['qkv']:+.3f}"
        )
    figures.style(_fig, 260, "Difference to Q, K, V in nats: " + "; ".join(_words) + ".")
    _fig.add_vline(x=0, line={"color": "#888888", "width": 1})
    _fig.update_yaxes(
        tickvals=list(range(len(_others))),
        ticktext=[legend(NAMES[a]) for a in _others],
        range=[-0.5, len(_others) - 0.4],
    )
    _fig.update_xaxes(title="loss minus that of Q, K, V, nats")
    figures.show(_fig, caption="Seed by seed against the full model. Left of the line is better than Q, K, V.")
    return


@app.cell(hide_code=True)
def _(NAMES, run):
    _arms = [arm for arm in ("qkv", "identity-q") if any(t["arm"] == arm for t in run.tuning)]
    _first = next(
        t for t in run.tuning if t["arm"] == "identity-q"
    )  # its rate and length are those of the whole ladder
    ladders = {
        arm: sorted(
            {
                t["logit_scale"]: t["val_loss"]
                for t in run.tuning
                if t["arm"] == arm and (t["lr"], t["steps"]) == (_first["lr"], _first["steps"]) and t["val_loss"]
            }.items()
        )
        for arm in _arms
    }
    ladder_steps = _first["steps"]
    _fig = figures.loss_figure(
        [figures.Curve(legend(NAMES[_a]), *zip(*_points, strict=True), slug=_a) for _a, _points in ladders.items()],
        x_title="logit scale, times 1/√d_h",
        y_title="validation loss, nats per character",
        log_x=True,
        height=300,
    )
    figures.show(
        _fig,
        "Loss against logit scale. "
        + "; ".join(f"{NAMES[a]}: " + ", ".join(f"{x:g} gives {y:.3f}" for x, y in p) for a, p in ladders.items())
        + ".",
        caption=f"Runs of {_first['steps']} steps, one seed, one learning rate: only the scale of the logits moves. Paper A uses 1 with "
        "W<sub>Q</sub> and ½ without.",
    )
    return ladder_steps, ladders


@app.cell(hide_code=True)
def _(ladder_steps, ladders, run, table):
    _losses = dict(ladders["identity-q"])
    _taken = _losses[min(_losses, key=_losses.get)] - min(loss for _, loss in ladders["qkv"])
    _best = min(_losses, key=_losses.get)
    _low = min(_losses)
    _from = "paper A's ½" if _low == 0.5 else f"scale {_low:g}"
    _gap, _cost = table["identity-q"], _losses[_low] - _losses[_best]
    _more = "more" if _cost > abs(_taken) else "no more"
    _half = "here it is also the best" if _best == 0.5 else "it is not where this model learns best"
    _big, _small = table["identity-q:mlp=4.5"], table["qkv:mlp=3.5"]
    _sure = lambda row: abs(row.difference) > (row.interval or 9)
    _word = lambda row: (
        "not to be told from Q, K, V by these seeds" if not _sure(row) else "worse" if row.difference > 0 else "better"
    )
    _arm = "identity-q:mlp=4.5"
    _rates = sorted(
        (t["val_loss"], t["lr"])
        for t in run.tuning
        if t["arm"] == _arm and t["steps"] == run.config(_arm).steps and t["val_loss"]
    )
    labs.prose(rf"""
    **The honest reading.**

    - At this width the scale of the logits moves the loss {_more} than the matrix does. For $\WQ = I$, in runs of {ladder_steps} steps, going from
      {_from} to the best scale here ({_best:g}) gains **{_cost:.3f}** nats; taking the matrix away, each model at its best scale, moves the loss by
      **{_taken:+.3f}**. Half lets the two models start alike, here as in paper A; {_half}.
    - At equal width $\WQ = I$ is {_word(_gap)}: {_gap.difference:+.3f} ± {_gap.interval or 0:.3f} nats. Paper A has +0.002, from one seed, in a model whose heads are
      {64 // (run.config("qkv").model.width // run.config("qkv").model.heads)} times as wide: there each head asks with more coordinates (point 2 of the claim).
    - At equal parameters: $\WQ = I$ with the larger MLP is {_word(_big)}, {_big.difference:+.3f} ± {_big.interval or 0:.3f} (paper A −0.012). Q, K, V with the smaller MLP, as small as
      $\WQ = I$, is {_word(_small)}, {_small.difference:+.3f} ± {_small.interval or 0:.3f} (paper A +0.010).
    - A result holds at the rates that tuning chose, on one seed. For $\WQ = I$ with the larger MLP, rate {_rates[0][1]:g} was ahead of {_rates[1][1]:g} by
      {_rates[1][0] - _rates[0][0]:.3f} nats there, less than seeds differ. The other rate was not tried on the new seeds, and may close a part of that gap.
    - Paper A's differences are 0.1 to 0.4 % of the loss, from one seed each, a sixth of the way down the cosine, with scale *and* weight decay changed
      together. An independent re-tuning of the sequel found effects of the learning rate alone of 0.03 to 0.08 nats.

    Our runs are about a hundred times smaller. They do not refute the paper. They show what to tune before you compare.
    """)
    return


@app.cell(hide_code=True)
def _(NAMES, run):
    def cost_table(cost):
        base = cost["qkv"]
        change = lambda new, old: (
            "reference"
            if new is old
            else f"{100 * (new / old - 1):+.1f} %".replace("-0.0", "0.0").replace("+0.0", "0.0")
        )
        lines = [
            f'| <span style="white-space:nowrap">{labs.matrices(NAMES[arm])}</span> | '
            f"{c['step_ms']:.1f}\u00a0ms | {change(c['step_ms'], base['step_ms'])} | "
            f"{c['optimiser_bytes'] / 1e6:.2f} MB | {change(c['optimiser_bytes'], base['optimiser_bytes'])} |"
            for arm, c in cost.items()
        ]
        return wide("| model | one step | | optimiser memory | |\n|:--|--:|--:|--:|--:|\n" + "\n".join(lines))

    _faster = 1 - run.cost["identity-q"]["step_ms"] / run.cost["qkv"]["step_ms"]
    _time = (
        f" and {_faster:.0%} of a step's time"
        if _faster > 0.02
        else "; of the time of a step it saves nothing that this measurement can see"
    )
    mo.vstack(
        [
            mo.md("### What a step costs"),
            cost_table(run.cost),
            labs.prose(f"""
    Medians of interleaved steps on {run.provenance["machine"]}. The missing matrix saves its own memory{_time}. It does not
    touch the key/value cache: queries are never cached.
    """),
        ],
        gap=0.6,
    )
    return (cost_table,)


@app.cell(hide_code=True)
def _():
    measure_here = mo.ui.run_button(label="Measure on this machine (about 10 seconds)")
    measure_here
    return (measure_here,)


@app.cell(hide_code=True)
def _(cost_table, measure_here, panel, run):
    mo.stop(not measure_here.value)
    mo.stop(
        getattr(panel.controller, "status", "") == "running",
        mo.callout(mo.md("Pause the training first: it would be measured with it."), kind="warn"),
    )
    with mo.status.spinner("Taking steps in turn with each model"):
        here = experiments.cost(experiments.EXPERIMENTS[run.name], run.chosen, rounds=8, steps=2)
    cost_table(here)
    return (here,)


@app.cell(hide_code=True)
def _(NAMES, fresh, run, table):
    _finals = fresh.final("qkv")
    _first = {arm.label: arm for arm in run.table()}
    _told = "; ".join(
        f"{labs.matrices(NAMES[a])} {_first[a].difference:+.3f} ± {_first[a].interval or 0:.3f} then, "
        f"{table[a].difference:+.3f} ± {table[a].interval or 0:.3f} now"
        for a in run.arms[1:]
    )
    _null = max(abs(a - b) for a, b in combinations(_finals, 2))
    mo.vstack(
        [
            mo.md("## Limits, and a control"),
            labs.box(
                "limit",
                rf"""
    - One text, one width, one length of training. What more training or wider heads would do to the gap, it does not show.
    - The learning rate decides the sign. We first tuned it in runs a third as long, which gave Q, K, V a rate twice as high, and $\WQ = I$
      came out *better* on the two seeds we looked at. Then we tuned every arm at full length and trained those seeds again. A choice made
      after looking makes an interval too sure of itself. So we fixed everything and trained {len(fresh.seeds)} new seeds: {_told}.
      `data/runs/README.md` has the whole story.
    - Only the loss. Nothing here says what the models can do with it.
    - $\WQ = I$ saves parameters and optimiser memory, not the cache. Labs on shared keys and values come later.
    - "Replace $\WQ$ of a trained model by $I$" is neither this lab nor the lemma: it destroys the layer (lab 02).
    """,
            ),
            labs.prose(rf"""
    **The control: Q, K, V against itself.** Two of its own seeds differ by up to **{_null:.4f}** nats, with nothing changed at all. An unpaired comparison of single runs
    cannot see anything smaller. Paired by seed, with the same batches and equal initial values, the interval for $\WQ = I$ is ± {table["identity-q"].interval or 0:.4f}.

    **A control to run yourself.** Choose the recipe `fast` above. QK-norm makes every query equally long, with $\WQ$ or without, so point 3 of the claim no longer holds: both models start
    with equally large logits. Train both at scale 1. Is the gap smaller than under `paper`? Then move the scale. It is now a temperature, and for both alike.
    """),
        ],
        gap=0,
    )
    return


@app.cell(hide_code=True)
def _():
    mo.md("""
    ## Exercises

    Type or choose; each answers at once. Formulas use the names in the question.
    """)
    return


@app.cell(hide_code=True)
def _():
    ask_saved = exercises.ask("08-saved")
    ask_saved
    return (ask_saved,)


@app.cell(hide_code=True)
def _(ask_saved):
    exercises.reply(ask_saved)
    return


@app.cell(hide_code=True)
def _():
    ask_mlp = exercises.ask("08-mlp")
    ask_mlp
    return (ask_mlp,)


@app.cell(hide_code=True)
def _(ask_mlp):
    exercises.reply(ask_mlp)
    return


@app.cell(hide_code=True)
def _():
    ask_scale = exercises.ask("08-scale")
    ask_scale
    return (ask_scale,)


@app.cell(hide_code=True)
def _(ask_scale):
    exercises.reply(ask_scale)
    return


@app.cell(hide_code=True)
def _():
    ask_paired = exercises.ask("08-paired")
    ask_paired
    return (ask_paired,)


@app.cell(hide_code=True)
def _(ask_paired):
    exercises.reply(ask_paired)
    return


@app.cell(hide_code=True)
def _(GUESSES, guess, table):
    _gap, _interval = table["identity-q"].difference, table["identity-q"].interval or 0
    _answer = lambda gap: GUESSES[0 if gap > 0.1 else 1 if gap > 0.01 else 2 if gap >= -0.01 else 3]
    _also = sorted({_answer(_gap - _interval), _answer(_gap + _interval)} - {_answer(_gap)})
    _said = exercises.compare(
        guess,
        _answer(_gap),
        f"Tuned on its own, the model without {labs.matrices('W_Q')} ends {_gap:+.3f} ± {_interval:.3f} nats from the one with it. "
        + (f"That is the mean; the interval also reaches into *{'* and *'.join(_also)}*. " if _also else "")
        + "Its logit scale had to be found first.",
    )
    mo.vstack([mo.md("## Your prediction"), _said])
    return


@app.cell(hide_code=True)
def _():
    mo.md(r"""
    ## Read on

    - Karbevski and Mijoski, *Key and Value Weights Are Probably All You Need*, [arXiv 2510.23912](https://arxiv.org/abs/2510.23912) (2025). Section 5 is this lab at 124 M parameters.
    - Heimersheim, *You can remove GPT-2's LayerNorm by fine-tuning*, [arXiv 2409.13710](https://arxiv.org/abs/2409.13710) (2024). What the theorems would need.
    - Karbevski, *Beyond Linearity in Attention Projections*, [arXiv 2603.13381](https://arxiv.org/abs/2603.13381) (2026). If not a matrix, then what? Lab 10.
    - Dehghani et al., *Scaling Vision Transformers to 22 Billion Parameters*, [arXiv 2302.05442](https://arxiv.org/abs/2302.05442) (2023). Why logits grow, and QK-norm.
    - Karpathy, [nanoGPT](https://github.com/karpathy/nanoGPT) (2022). The code paper A started from.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.footer("train_without_queries")
    return


if __name__ == "__main__":
    app.run()

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="02 A change of basis",
    css_file="lab.css",
    html_head_file="head.html",
)

with app.setup(hide_code=True):
    import marimo as mo
    import numpy as np

    from qkvlab.course import exercises, labs, minilm
    from qkvlab.show import figures, page
    from qkvlab.theory import gauge, measure

    MODEL = minilm.load()
    HEADS = MODEL.W_Q.shape[1]
    NAMES = {"query matrix": "W_Q", "key matrix": "W_K", "value matrix": "W_V"}  # as a list shows them


@app.cell(hide_code=True)
def _():
    labs.outline("change_of_basis")
    return


@app.cell(hide_code=True)
def _():
    labs.header("change_of_basis")
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## A matrix disappears

    Below is one [[head]] of a trained language model, MiniLM. On the left it works with the weights it was trained with. On
    the right its layer has **no query matrix**: $\WQ$ is the identity, and 147,456 learned numbers are gone. The map is the
    same map. In ((three_projections)) you changed $\WQ$ and $\WK$ of one head together. Where has a whole matrix gone?
    """)
    return


@app.cell(hide_code=True)
def _(attend, erase, products, trained):
    _words, _x, _w = trained(2, 1)
    _new = erase(_w, "Q")
    _before = attend(*products(_x, _w), HEADS)[1]
    _after = attend(*products(_x @ _w["Q"] + _w["q"], _new), HEADS)[1]
    gap_at_the_top = np.abs(_after - _before)[0].max()
    figures.show(
        figures.map_figure([("as trained", _before[0]), ("query matrix = identity", _after[0])], _words),
        "Two attention maps of the same head, before and after its query matrix became the identity. They look the same; "
        f"the largest difference between two weights is {gap_at_the_top:.0e}.",
        "Layer 3, head 1. Each row is a token that looks, each column a token it looks at.",
    )
    return (gap_at_the_top,)


@app.cell(hide_code=True)
def _():
    guess = exercises.predict(
        "Subtract one map from the other. What is left?",
        ["nothing: every digit agrees", "rounding: 12 digits agree", "a little: 3 digits agree"],
    )
    guess
    return (guess,)


@app.cell(hide_code=True)
def _(guess):
    labs.prose(
        "*Choose one. A wrong guess costs nothing.*"
        if guess.value is None
        else "*Noted. The end of this lab comes back to it.*"
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## The claim

    Attention never sees its input $X$ itself. It sees the three products $X\WQ$, $X\WK$ and $X\WV$, and nothing else. So write
    $X$ in another basis, $X\Th$, and let each of the three matrices undo the change.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.box(
        "claim",
        r"""
    **Claim 2** (reparametrisation lemma). For every invertible $d \times d$ matrix $\Th$,

    $$ \begin{aligned}
    & \operatorname{Attn}(X\Th;\,\Th^{-1}\WQ,\,\Th^{-1}\WK,\,\Th^{-1}\WV) \\
    =\, & \operatorname{Attn}(X;\,\WQ,\,\WK,\,\WV).
    \end{aligned} $$

    If $\WQ$ is square and invertible you may choose $\Th = \WQ$. Then the first matrix on the left is $\WQ^{-1}\WQ = I$.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    This is lemma 3.1 of paper A, Karbevski and Mijoski (2025), a [[reparametrisation]]. It assumes that $\Th$ has an inverse. About what
    attention does with its three products it assumes nothing.

    So $\WQ$ has not vanished. It has moved: into the other two matrices, and into the input, which is now $X\WQ$. Whether a
    network can deliver that input is another question; it waits at the end of this lab.

    The code says what the lemma needs. `attend` is handed three products and no $X$:
    """)
    return


@app.cell
def _():
    def attend(queries, keys, values, heads=1, causal=False, rope=False):
        """Three products (T x d each) -> scores and weights (heads, T, T), output (T, d)."""
        T, d = queries.shape

        def split(m):  # (T, d) -> (heads, T, d_h)
            return m.reshape(T, heads, d // heads).swapaxes(0, 1)

        q, k, v = split(queries), split(keys), split(values)
        if rope:
            q, k = rotate(q), rotate(k)
        scores = q @ k.swapaxes(1, 2) / np.sqrt(d // heads)
        if causal:
            scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights = weights / weights.sum(axis=-1, keepdims=True)
        return scores, weights, (weights @ v).swapaxes(0, 1).reshape(T, d)

    mo.show_code()
    return (attend,)


@app.function(hide_code=True)
def rotate(m, base=10_000.0):
    """RoPE: turn each pair of coordinates of (heads, T, d_h) by an angle that grows with the position."""
    T, width = m.shape[-2:]
    angle = np.outer(np.arange(T), base ** (-np.arange(0, width, 2) / width))
    a, b = m[..., ::2], m[..., 1::2]
    return np.concatenate([a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)], axis=-1)


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## The proof, one line at a time

    Take 6 tokens of width 8 and random weights. Choose a basis, then move *line of the proof* to the right. Beside each line
    stands what this computer finds for it: a largest difference, relative to the largest entry.
    """)
    return


@app.cell(hide_code=True)
def _():
    _bases = {"random": "random"} | NAMES
    which = mo.ui.dropdown(
        _bases, value=page.choice("theta", "random", _bases), label="basis Θ", on_change=page.keep("theta")
    )
    power = mo.ui.slider(
        0,
        12,
        step=0.5,
        value=page.number("kappa", 1.0, 0, 12),
        label="condition number of a random Θ, as a power of ten",
        show_value=True,
        debounce=True,
        on_change=page.keep("kappa"),
    )
    line = mo.ui.slider(
        1,
        6,
        value=page.number("line", 1, 1, 6),
        label="line of the proof",
        show_value=True,
        debounce=True,
        on_change=page.keep("line"),
    )
    page.controls(theta=which, kappa=power, line=line)
    return line, power, which


@app.cell(hide_code=True)
def _(W, X, attend, line, new_W, new_X, theta, which):
    _products = {n: (new_X @ new_W[n], X @ W[n]) for n in W}
    _old, _new = (attend(*(_products[n][i] for n in W))[2] for i in (1, 0))
    _e = measure.relative_error
    _letter = which.value[-1]
    _lines = [
        (
            r"$X' = X\Th$",
            "Write every token in the new basis.",
            _e(new_X, X),
            "how far the input moved",
        ),
        (
            r"${W'_Q = \Th^{-1}\WQ}$, &ensp; ${W'_K = \Th^{-1}\WK}$, &ensp; ${W'_V = \Th^{-1}\WV}$",
            "Let each matrix undo the change."
            + ("" if which.value == "random" else rf" Here $\Th = \W{_letter}$, so $W'_{_letter} = I$."),
            max(_e(new_W[n], W[n]) for n in W),
            "how far the matrices moved",
        ),
        (
            r"$X'W'_Q = (X\Th)(\Th^{-1}\WQ) = X(\Th\Th^{-1})\WQ$",
            "You may bracket a product as you like. In a computer this is the line that rounds.",
            _e(new_X @ new_W["W_Q"], X @ ((theta @ np.linalg.inv(theta)) @ W["W_Q"])),
            "between the two bracketings",
        ),
        (
            r"$\phantom{X'W'_Q} = X\WQ$",
            r"Because $\Th\Th^{-1} = I$. The queries are what they were.",
            _e(*_products["W_Q"]),
            "between new and old queries",
        ),
        (
            r"${X'W'_K = X\WK}$, &ensp; ${X'W'_V = X\WV}$",
            "The same two lines with another letter.",
            max(_e(*_products["W_K"]), _e(*_products["W_V"])),
            "between new and old keys and values",
        ),
        (
            r"$\operatorname{Attn}' = \operatorname{Attn}$",
            "Attention is a function of the three products. Equal products in, equal output out.",
            _e(_new, _old),
            "between new and old output",
        ),
    ]
    _html = "".join(
        f'<div class="proof-line{" now" * (i == line.value)}">{labs.prose(f"**{i}.** {formula}<br>{why}").text}'
        f"<div><b>{f'{error:,.3g}' if 0.005 < error < 1e6 else f'{error:.1e}'}</b><small>{what}</small></div></div>"
        for i, (formula, why, error, what) in enumerate(_lines[: line.value], 1)
    )
    _left = 6 - line.value
    mo.vstack(
        [
            mo.Html(f"<div>{_html}</div>"),
            labs.prose(
                f"*{_left} more {'line' if _left == 1 else 'lines'}: move the slider.*"
                if _left
                else "Lines 1 and 2 show large numbers: the input and the matrices have really changed. From line 3 on the numbers "
                "are rounding, and line 6 is the lemma."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose("The tokens and matrices, and lines 1 and 2, in code:")
    return


@app.cell
def _():
    rng = np.random.default_rng(7)
    X = rng.standard_normal((6, 8))
    W = {name: rng.standard_normal((8, 8)) / np.sqrt(8) for name in ("W_Q", "W_K", "W_V")}

    mo.show_code()
    return W, X


@app.cell
def _(W, X, power, which):
    theta = gauge.basis(10**power.value, 8) if which.value == "random" else W[which.value]
    new_X = X @ theta
    new_W = {name: np.linalg.solve(theta, weight) for name, weight in W.items()}  # theta^-1 W

    mo.show_code()
    return new_W, new_X, theta


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Check it, then break it

    The proof did not look inside attention. So heads, a [[causal mask]] and rotary positions (RoPE) must make no difference.
    Switch them: the number stays tiny. Then leave one matrix in the old basis. (The basis here is a random one with condition
    number 10.)
    """)
    return


@app.cell(hide_code=True)
def _():
    heads = mo.ui.dropdown(
        ["1", "2", "4"], value=page.choice("heads", "2", ["1", "2", "4"]), label="heads", on_change=page.keep("heads")
    )
    causal = mo.ui.switch(page.switch("causal", True), label="causal mask", on_change=page.keep("causal"))
    rope = mo.ui.switch(page.switch("rope", False), label="RoPE", on_change=page.keep("rope"))
    _names = {"none": "none"} | NAMES
    forgotten = mo.ui.dropdown(
        _names,
        value=page.choice("forget", "none", _names),
        label="left in the old basis",
        on_change=page.keep("forget"),
    )
    page.controls(heads=heads, causal=causal, rope=rope, forget=forgotten)
    return causal, forgotten, heads, rope


@app.cell
def _(W, X, attend, causal, forgotten, heads, rope):
    inside = {"heads": int(heads.value), "causal": causal.value, "rope": rope.value}
    _theta = gauge.basis(10, 8)
    used = {name: w if name == forgotten.value else np.linalg.solve(_theta, w) for name, w in W.items()}

    _, old_map, old_output = attend(*(X @ weight for weight in W.values()), **inside)
    _, new_map, new_output = attend(*(X @ _theta @ weight for weight in used.values()), **inside)
    error = measure.relative_error(new_output, old_output)
    return error, new_map, old_map


@app.cell(hide_code=True)
def _(error, forgotten, new_map, old_map):
    _what = "largest difference of the output, relative to its largest entry"
    if forgotten.value == "none":
        _exact = error < 1e-12  # this basis has condition number 10
        _number = labs.number(f"{error:.1e}", _what, "exact" if _exact else "fails")
        _why = (
            "What is left is rounding. Other bases leave more of it: the next section says how much."
            if _exact
            else "This is more than rounding: the code above no longer does what the lemma says."
        )
    else:
        _number = labs.number(f"{error:.2g}" if error > 0.005 else f"{error:.1e}", _what, "fails")
        _why = rf"""
        $\W{forgotten.value[-1]}$ expects the old basis and is handed $X\Th$. So it makes another product. The lemma
        needs all three matrices to undo the change.
        {"The maps still agree: they come from queries and keys alone." if forgotten.value == "W_V" else ""}
        """
    mo.vstack(
        [
            mo.Html(_number),
            labs.prose(_why),
            figures.show(
                figures.map_figure([("old basis", old_map[0]), ("new basis", new_map[0])], limits=(0, 1), height=320),
                f"Attention maps of the first head in the old and in the new basis; the largest difference between two "
                f"weights is {np.abs(new_map - old_map).max():.1e}.",
                "Attention weights of the first head.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Exact on paper, rounded in a machine

    A computer keeps a fixed number of digits: [[float64]] about 16, float32 about 7, bfloat16 between 2 and 3. The
    [[condition number]] $\kappa$ says how unevenly $\Th$ stretches space. What $\Th$ squeezes by a factor $\kappa$, $\Th^{-1}$
    has to blow up again, and the rounding error with it. **Each power of ten in $\kappa$ costs about one digit**, until none
    is left.
    """)
    return


@app.cell(hide_code=True)
def _():
    stretch = mo.ui.slider(
        0,
        12,
        step=0.5,
        value=page.number("stretch", 4.0, 0, 12),
        label="condition number, as a power of ten",
        show_value=True,
        debounce=True,
        on_change=page.keep("stretch"),
    )
    page.controls(stretch=stretch)
    return (stretch,)


@app.cell(hide_code=True)
def _():
    def rounding_errors(kappa, seed, T=16, d=32):
        """Relative error of X W, computed as (X Theta)(Theta^-1 W), for each precision in which all is stored."""
        draw = np.random.default_rng(seed)
        x, w = draw.standard_normal((T, d)), draw.standard_normal((d, d)) / np.sqrt(d)
        basis = gauge.basis(kappa, d, seed)
        exact = {"stream": x @ basis, "weight": gauge.read(basis, w)}
        found = []
        for precision in measure.PRECISIONS:
            stored = {name: measure.round_to(m, precision) for name, m in exact.items()}
            product = measure.round_to(stored["stream"] @ stored["weight"], precision)
            found.append(measure.relative_error(product, x @ w))
        return found

    powers = np.arange(0, 12.5, 0.5)
    _all = np.array([[rounding_errors(10.0**p, seed) for p in powers] for seed in range(5)])
    errors = dict(zip(measure.PRECISIONS, np.moveaxis(_all, -1, 0), strict=True))  # name -> (draws, powers)
    return errors, powers


@app.cell(hide_code=True)
def _(errors, powers, stretch):
    here = {name: e[:, int(2 * stretch.value)].mean() for name, e in errors.items()}
    _looks = {"float64": ("#0072B2", "solid"), "float32": ("#009E73", "dash"), "bfloat16": ("#D55E00", "dot")}
    _figure = figures.loss_figure(
        [figures.Curve(n, 10.0**powers, e, colour=_looks[n][0], dash=_looks[n][1]) for n, e in errors.items()],
        x_title="condition number of Θ",
        y_title="relative error of the queries",
        log_x=True,
        log_y=True,
        height=380,
    )
    _line = {"type": "line", "line": {"width": 1.5, "dash": "dot", "color": figures.GREY}}
    _upright = _line | {"x0": 10**stretch.value, "x1": 10**stretch.value, "y0": 0, "y1": 1, "yref": "paper"}
    _level = _line | {"x0": 0, "x1": 1, "xref": "paper", "y0": 1, "y1": 1, "line": {"width": 1, "color": figures.GREY}}
    _figure.update_layout(shapes=[_upright, _level], yaxis_range=[-16, 2])
    _rows = "\n".join(
        f"| {name} | {-np.log10(unit / 2):.1f} | {f'{here[name]:,.0f}' if here[name] > 1 else f'{here[name]:.0e}'} | {max(0, -np.log10(here[name])):.1f} |"
        for name, unit in measure.PRECISIONS.items()
    )
    mo.vstack(
        [
            figures.show(
                _figure,
                "Relative error of the queries against the condition number of Theta, on logarithmic scales: three lines, one "
                "for each precision, that rise together by about one power of ten for each power of ten. At the slider: "
                + ", ".join(f"{name} {e:.0e}" for name, e in here.items()),
                "Mean of 5 draws; the bands go from the lowest to the highest. The upright line is your slider. Above the level "
                "line at 1 the error is as large as the queries.",
            ),
            labs.prose(
                f"With condition number $10^{{{stretch.value:g}}}$:\n\n"
                "| precision | digits it has | error here | digits left |\n| :-- | --: | --: | --: |\n" + _rows
            ),
        ]
    )
    return (here,)


@app.cell(hide_code=True)
def _():
    mo.accordion(
        {
            "What exactly is rounded": labs.prose(r"""
            The new weights $\Th^{-1}W$ are computed in float64 and then stored in the precision of the line. So are $X\Th$ and
            the product of the two. Within a product float32 and bfloat16 both add up in float32, as a GPU does. numpy has no
            bfloat16: here it is float32 rounded to its upper 16 bits, to nearest, ties to even.
            """)
        }
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Play: erase a matrix of a trained model

    Now the real case, MiniLM with its 6 layers, width 384 and 12 heads. It has biases, so the new input is $X\WQ + b_Q$. That
    *is* the query: nothing is left to multiply by. Keys and values take their share of the shift out of their own biases.
    """)
    return


@app.cell
def _():
    def erase(w, name):
        """New weights for the input x W + b, W = w[name]: W is gone, the others undo it."""
        theta, shift = w[name], w[name.lower()]
        new = {name: None}
        for m in set("QKV") - {name}:
            new[m] = np.linalg.solve(theta, w[m])
            new[m.lower()] = w[m.lower()] - shift @ new[m]
        return new

    def products(x, w, precision="float64"):
        """Q, K and V. Everything that is stored is rounded to `precision`."""

        def store(m):
            return measure.round_to(m, precision)

        def project(m):
            if w[m] is None:
                return store(x)  # no matrix, nothing to multiply
            return store(store(store(x) @ store(w[m])) + store(w[m.lower()]))

        return project("Q"), project("K"), project("V")

    mo.show_code()
    return erase, products


@app.cell(hide_code=True)
def _():
    def trained(layer, sentence):
        """Tokens, input (T, 384), and the matrices and biases of one layer of MiniLM with all heads side by side."""
        weights = {}
        for m, w in zip("QKV", (MODEL.W_Q, MODEL.W_K, MODEL.W_V), strict=True):
            whole = w[layer].swapaxes(0, 1).reshape(w.shape[2], -1)  # (d + 1, d), the bias last
            weights |= {m: whole[:-1], m.lower(): whole[-1]}
        return MODEL.sentences[sentence].tokens, MODEL.sentences[sentence].x[layer][:, :-1], weights

    return (trained,)


@app.cell(hide_code=True)
def _():
    labs.prose("Start in float64. Then try bfloat16, in which many models are kept.")
    return


@app.cell(hide_code=True)
def _():
    _precisions = list(measure.PRECISIONS)
    erased = mo.ui.dropdown(
        NAMES, value=page.choice("erase", "W_Q", NAMES), label="becomes the identity", on_change=page.keep("erase")
    )
    precision = mo.ui.dropdown(
        _precisions,
        value=page.choice("precision", "float64", _precisions),
        label="stored in",
        on_change=page.keep("precision"),
    )
    layer, head = (
        mo.ui.slider(
            1,
            most,
            value=page.number(name, first, 1, most),
            label=name,
            show_value=True,
            debounce=True,
            on_change=page.keep(name),
        )
        for name, first, most in (("layer", 3, len(MODEL.W_Q)), ("head", 1, HEADS))
    )
    page.controls(erase=erased, precision=precision, layer=layer, head=head)
    return erased, head, layer, precision


@app.cell(hide_code=True)
def _(attend, erase, erased, head, layer, precision, products, trained):
    _words, _x, _w = trained(layer.value - 1, 1)
    _m, _h = erased.value[-1], head.value - 1
    _, _before, _output = attend(*products(_x, _w), HEADS)
    _stream = _x @ _w[_m] + _w[_m.lower()]
    _, _after, _found = attend(*products(_stream, erase(_w, _m), precision.value), HEADS)
    _error, _gap = measure.relative_error(_found, _output), np.abs(_after - _before)[_h].max()
    _digits = max(0, int(-np.log10(_error)))
    _word = f"{_digits} digit{'s' * (_digits != 1)} left"
    _verdict = (
        ("exact",)
        if _digits > 9
        else ("exact", _word)
        if _digits > 2
        else ("within noise", _word)
        if _digits
        else ("fails", "fails: no digit left")
    )
    mo.vstack(
        [
            mo.Html(
                labs.number(
                    f"{_error:.1e}" if _error < 0.01 else f"{_error:.2f}",
                    f"largest difference of the heads' output, relative to its largest entry; {labs.matrices(erased.value)} "
                    f"has condition number {measure.condition(_w[_m]):,.0f}",
                    *_verdict,
                )
            ),
            figures.show(
                figures.map_figure([("as trained", _before[_h]), (f"erased, {precision.value}", _after[_h])], _words),
                f"Attention maps of layer {layer.value}, head {head.value}, before and after {erased.value} became the identity "
                f"in {precision.value}; the largest difference between two weights is {_gap:.1e}.",
                f"Layer {layer.value}, head {head.value}. Largest difference between two weights: {_gap:.1e}.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## What the paper says, what we find

    Paper A proves the lemma and gives no numbers. Here they are for $\Th = \WQ$ in each layer of MiniLM: the largest error of
    the heads' output over two sentences, relative to its largest entry.
    """)
    return


@app.cell(hide_code=True)
def _(attend, erase, products, trained):
    _rows, _worst = [], dict.fromkeys(measure.PRECISIONS, 0.0)
    for _layer in range(len(MODEL.W_Q)):
        _errors = dict.fromkeys(measure.PRECISIONS, 0.0)
        _new = erase(trained(_layer, 0)[2], "Q")
        for _sentence in (0, 1):
            _, _x, _w = trained(_layer, _sentence)
            _output = attend(*products(_x, _w), HEADS)[2]
            for _name in _errors:
                _found = attend(*products(_x @ _w["Q"] + _w["q"], _new, _name), HEADS)[2]
                _errors[_name] = max(_errors[_name], measure.relative_error(_found, _output))
        _worst = {name: max(_worst[name], e) for name, e in _errors.items()}
        _cells = " | ".join(f"{e:.0e}" if e < 0.01 else f"{e:.2f}" for e in _errors.values())
        _rows.append(f"| {_layer + 1} | {measure.condition(_w['Q']):,.0f} | {_cells} |")
    labs.prose(
        "| layer | condition number of $\\WQ$ | float64 | float32 | bfloat16 |\n| --: | --: | --: | --: | --: |\n"
        + "\n".join(_rows)
        + rf"""

    The lemma holds in every layer. It also comes with a warning that the paper does not give: these trained query matrices have
    condition numbers in the thousands. Float32 keeps about {-np.log10(_worst["float32"]):.0f} digits; in bfloat16 the
    rewritten layer is another layer. Whoever *rewrites* a model should compute and store in float64 or float32. Whoever
    *trains* with $\WQ = I$ from the start, as in ((train_without_queries)), inverts nothing and pays nothing.

    `qkvlab verify` recomputes the statements of this lab on your machine, and the false ones beside them.
    """
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## What the lemma does not say

    It speaks of one attention that is *handed* $X\Th$. In a network, all that touches the [[residual stream]] has to live with
    the new basis. Here are eight neighbours and three kinds of $\Th$. Which can live with which?
    """)
    return


@app.cell(hide_code=True)
def _(attend):
    _draw = np.random.default_rng(3)
    _T, _d = 60, 8
    _X, _E = _draw.standard_normal((_T, _d)), _draw.standard_normal((20, _d))
    _wq, _wk, _wv, _wo, _w1, _w2, _vq, _vk, _vv, _vo = _draw.standard_normal((10, _d, _d)) / np.sqrt(_d)
    _bases = {
        "any Θ": gauge.basis(10, _d),
        "rotation": gauge.basis(1, _d),
        "permutation": np.eye(_d)[_draw.permutation(_d)],
    }
    _read, _write = gauge.read, gauge.write

    def _block(x, q, k, v, o):
        return x + attend(x @ q, x @ k, x @ v)[2] @ o

    def _pointwise(f):
        """The best matrix M in f(x Theta) = f(x) M, by least squares."""
        return lambda t: (f(_X) @ np.linalg.lstsq(f(_X), f(_X @ t), rcond=None)[0], f(_X @ t))

    def _two_bases(t):
        other = t @ gauge.basis(3, _d, seed=5)
        middle = _block(_X @ t, *(_read(t, w) for w in (_wq, _wk, _wv)), _write(t, _wo))
        end = _block(middle, *(_read(other, w) for w in (_vq, _vk, _vv)), _write(other, _vo))
        return end, _block(_block(_X, _wq, _wk, _wv, _wo), _vq, _vk, _vv, _vo) @ other

    _rows = [
        (
            "attention",
            "the lemma",
            lambda t: (
                attend(*(_X @ t @ _read(t, w) for w in (_wq, _wk, _wv)))[2],
                attend(_X @ _wq, _X @ _wk, _X @ _wv)[2],
            ),
        ),
        (
            "attention with a skip",
            "what enters and what is added share one basis",
            lambda t: (
                _block(_X @ t, *(_read(t, w) for w in (_wq, _wk, _wv)), _write(t, _wo)),
                _block(_X, _wq, _wk, _wv, _wo) @ t,
            ),
        ),
        (
            "an MLP",
            "it reads and writes through matrices, and these take part",
            lambda t: (np.maximum(_X @ t @ _read(t, _w1), 0) @ _write(t, _w2), np.maximum(_X @ _w1, 0) @ _w2 @ t),
        ),
        (
            "RMSNorm",
            "divides by a length, which only a rotation keeps",
            _pointwise(lambda x: x / np.sqrt((x * x).mean(-1, keepdims=True))),
        ),
        (
            "LayerNorm",
            "also subtracts the mean coordinate, which most rotations mix in",
            _pointwise(lambda x: (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)),
        ),
        (
            "a read-out tied to the embedding",
            "one matrix makes vectors of tokens and scores of vectors: Θ comes in twice, so ΘΘᵀ has to be I",
            lambda t: (_X @ t @ (_E @ t).T, _X @ _E.T),
        ),
        (
            "a ReLU on the stream itself",
            "works on each coordinate, so the axes matter",
            _pointwise(lambda x: np.maximum(x, 0)),
        ),
        (
            "two layers with skips, each with a Θ of its own",
            "the skip hands the old basis to a layer that expects a new one",
            _two_bases,
        ),
    ]
    _lines = []
    for _name, _why, _sides in _rows:
        _errors = [measure.relative_error(*_sides(t)) for t in _bases.values()]
        _cells = (
            f"{labs.state('exact', 'exact') if e < 1e-12 else labs.state('fails')}<br><small>{f'{e:.1g}' if e > 0.01 else f'{e:.0e}'}</small>"
            for e in _errors
        )
        _lines.append(f"| {_name}<br><small>{_why}</small> | " + " | ".join(_cells) + " |")
    _head = "| part of the network | " + " | ".join(_bases) + " |\n| :-- | :-- | :-- | :-- |\n"
    mo.Html(f'<div class="scroll-x">{labs.prose(_head + chr(10).join(_lines)).text}</div>')
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    Each number is an error computed now, relative to the largest entry. For the norms and the ReLU it is the error of the *best*
    matrix $M$ in $f(X\Th) = f(X)M$, so no cleverer choice of weights would help.

    Read the first column. The $\Th$ that removes $\WQ$ is just any matrix, and such a $\Th$ gets past attention, one skip and the
    MLP. It gets past no norm, no tied read-out, and no second layer with another $\Th$. ((one_layer_for_free)), ((every_layer)) and
    ((normalisation)) take these walls one by one.
    """)
    return


@app.cell(hide_code=True)
def _(attend, products, trained):
    _, _x, _w = trained(2, 1)
    _output = attend(*products(_x, _w), HEADS)[2]
    _naive = attend(*products(_x, _w | {"Q": None}), HEADS)[2]
    mo.vstack(
        [
            labs.box(
                "limit",
                r"""
            **A common misreading**: "so replace the query projection of a trained model by the identity". If nothing else is
            changed, that is not the lemma. This is what it does to layer 3 of MiniLM:
            """,
            ),
            mo.Html(
                labs.number(
                    f"{measure.relative_error(_naive, _output):.2f}",
                    "largest difference of the heads' output, relative to its largest entry",
                    "fails",
                )
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _(gap_at_the_top, guess, trained):
    mo.vstack(
        [
            labs.prose("## Your prediction"),
            exercises.compare(
                guess,
                "rounding: 12 digits agree",
                f"The largest difference between the two maps at the top is {gap_at_the_top:.0e}. On paper it is zero. "
                f"The computer keeps 16 digits, and a query matrix with condition number {measure.condition(trained(2, 1)[2]['Q']):,.0f} costs three to "
                "four of them.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Exercises

    Each answers at once. Formulas are typed with the names in the question: `@` multiplies matrices, `inv(A)` and `A.T` are
    inverse and transpose.
    """)
    return


@app.cell(hide_code=True)
def _():
    side = exercises.ask("02-which-side")
    side
    return (side,)


@app.cell(hide_code=True)
def _(side):
    exercises.reply(side)
    return


@app.cell(hide_code=True)
def _():
    layout = exercises.ask("02-torch-layout")
    layout
    return (layout,)


@app.cell(hide_code=True)
def _(layout):
    exercises.reply(layout)
    return


@app.cell(hide_code=True)
def _():
    digits = exercises.ask("02-digits-left")
    digits
    return (digits,)


@app.cell(hide_code=True)
def _(digits):
    exercises.reply(digits)
    return


@app.cell(hide_code=True)
def _():
    bias = exercises.ask("02-bias")
    bias
    return (bias,)


@app.cell(hide_code=True)
def _(bias):
    exercises.reply(bias)
    return


@app.cell(hide_code=True)
def _():
    surgery = exercises.ask("02-surgery")
    surgery
    return (surgery,)


@app.cell(hide_code=True)
def _(surgery):
    exercises.reply(surgery)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Read on

    - Karbevski and Mijoski, [Key and Value Weights Are Probably All You Need](https://arxiv.org/abs/2510.23912) (2025). Lemma 3.1
      is this lab; theorems 4.1 to 4.3 are labs 04 and 05.
    - Graef, [Transformer tricks: removing weights for skipless transformers](https://arxiv.org/abs/2404.12362) (2024). The same move
      where there are no skips.
    - Graef and Wasielewski, [Slim attention](https://arxiv.org/abs/2503.05840) (2025). The lemma with $\Th = \WK$, used to halve a cache.
    - Elhage et al., [A Mathematical Framework for Transformer Circuits](https://transformer-circuits.pub/2021/framework/index.html)
      (2021). Why only products of matrices mean something.
    - Higham, *Accuracy and Stability of Numerical Algorithms* (2002), chapters 1 and 7. Where the digits go.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.footer("change_of_basis")
    return


if __name__ == "__main__":
    app.run()

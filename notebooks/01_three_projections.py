import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="01 Three projections",
    css_file="lab.css",
    html_head_file="head.html",
)

with app.setup(hide_code=True):
    import marimo as mo
    import numpy as np

    from qkvlab.course import exercises, labs, minilm
    from qkvlab.models.variants import VARIANTS, variant
    from qkvlab.show import badge, figures, page
    from qkvlab.theory import gauge, measure

    MODEL = minilm.load()
    LAYERS, HEADS, _, WIDTH_OF_HEAD = MODEL.W_Q.shape
    EPS = np.finfo(float).eps


@app.function
def softmax(scores):
    """Each row becomes positive weights that add to 1. Scores of minus infinity get weight 0."""
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


@app.cell(hide_code=True)
def _():
    labs.outline("three_projections")
    return


@app.cell(hide_code=True)
def _():
    labs.header("three_projections")
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Two heads, one behaviour

    Attention is often introduced with three matrices, one each for [[query|queries]], [[key|keys]] and [[value|values]],
    and the remark that they give it three degrees of freedom.

    Here a [[head]] of MiniLM, a small trained language model, reads a sentence. Each row shows how much one word takes from the
    others: this head looks at the word before. On the left are the model's own $\WQ$ and $\WK$. On the right **both matrices
    were replaced**, by matrices that look nothing like the old ones. The map is the same map.
    """)
    return


@app.cell(hide_code=True)
def _():
    _sentence, _layer, _head = MODEL.sentences[1], 0, 2
    _X, _own_q, _own_k = _sentence.x[_layer], MODEL.W_Q[_layer, _head], MODEL.W_K[_layer, _head]
    _M = gauge.basis(10, WIDTH_OF_HEAD, seed=1)
    _new_q, _new_k = _own_q @ _M, _own_k @ np.linalg.inv(_M).T
    _own, _new = (
        softmax((_X @ _q) @ (_X @ _k).T / np.sqrt(WIDTH_OF_HEAD)) for _q, _k in ((_own_q, _own_k), (_new_q, _new_k))
    )
    _cosine = float((_own_q * _new_q).sum() / np.linalg.norm(_own_q) / np.linalg.norm(_new_q))
    _gap = np.abs(_own - _new).max()
    mo.vstack(
        [
            figures.show(
                figures.map_figure([("own matrices", _own), ("both replaced", _new)], _sentence.tokens),
                "Two attention maps of the same sentence, one with the model's own query and key matrices, one with both "
                f"replaced: they agree to {_gap:.0e}. Most weight lies just left of the diagonal: each word looks at the "
                "word before it.",
            ),
            mo.Html(
                '<div class="numbers">'
                + labs.number(
                    f"{_cosine:.2f}", f"cosine of the old and the new {labs.matrices('W_Q')}: nearly at right angles"
                )
                + labs.number(f"{_gap:.0e}", "largest difference between the two maps", "exact")
                + "</div>"
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(f"""
    How large is the freedom that let us do this? A token enters with $d$ = 384 numbers, and this head makes $d_h$ = {WIDTH_OF_HEAD}
    of them. So its two matrices hold 2 × 384 × {WIDTH_OF_HEAD} = {2 * 384 * WIDTH_OF_HEAD:,} numbers (biases aside).
    """)
    return


@app.cell(hide_code=True)
def _():
    freedom = {
        "none: I have been tricked": "0",
        f"{WIDTH_OF_HEAD}: a factor for each coordinate of the head": "d_h",
        f"{WIDTH_OF_HEAD**2:,}: a matrix of {WIDTH_OF_HEAD} × {WIDTH_OF_HEAD}": "d_h²",
        f"{384 * WIDTH_OF_HEAD:,}: one of the two matrices": "d·d_h",
    }
    guess = exercises.predict(
        "In how many independent directions can you move these numbers and change no attention map, of any sentence?",
        list(freedom),
    )
    guess
    return freedom, guess


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## One head, step by step

    Choose what you look at: the four steps follow, and later the claim is checked on the same head.
    """)
    return


@app.cell(hide_code=True)
def _():
    sentence = mo.ui.dropdown(
        {s.text: i for i, s in enumerate(MODEL.sentences)},
        value=MODEL.sentences[page.number("sentence", 1, 0, 1)].text,
        label="sentence",
        on_change=page.keep("sentence"),
    )
    layer = mo.ui.slider(
        1,
        LAYERS,
        value=page.number("layer", 1, 1, LAYERS),
        label="layer",
        show_value=True,
        debounce=True,
        on_change=page.keep("layer"),
    )
    head = mo.ui.slider(
        1,
        HEADS,
        value=page.number("head", 3, 1, HEADS),
        label="head",
        show_value=True,
        debounce=True,
        on_change=page.keep("head"),
    )
    page.controls(sentence=sentence, layer=layer, head=head)
    return head, layer, sentence


@app.cell(hide_code=True)
def _(head, layer, sentence):
    words = MODEL.sentences[sentence.value].tokens
    X = MODEL.sentences[sentence.value].x[layer.value - 1]  # (T, d)
    W_Q, W_K, W_V, W_O = (
        w[layer.value - 1, head.value - 1] for w in (MODEL.W_Q, MODEL.W_K, MODEL.W_V, MODEL.W_O)
    )  # (d, d_h) three times, (d_h, d)
    reference = MODEL.sentences[sentence.value].maps[layer.value - 1, head.value - 1]  # (T, T)
    d_h = WIDTH_OF_HEAD
    labs.prose(rf"""
    **1. Project.** The sentence has $T$ = {len(words)} [[token|tokens]]. Each arrives as a row of $X$, its [[hidden state]] (and a
    one, so that the bias is one more row of each matrix).
    Three matrices turn every row into a query (what it looks for), a key (how it can be found) and a value (what it hands over),
    {d_h} numbers each:

    $$ Q = X\WQ, \qquad K = X\WK, \qquad V = X\WV . $$
    """)
    return W_K, W_O, W_Q, W_V, X, d_h, reference, words


@app.cell
def _(W_K, W_Q, W_V, X):
    Q, K, V = X @ W_Q, X @ W_K, X @ W_V  # (T, d_h) each
    mo.show_code()
    return K, Q, V


@app.cell(hide_code=True)
def _(K, Q, V, words):
    figures.show(
        figures.map_figure(
            [("Q", Q), ("K", K), ("V", V)], rows=words, columns=3, difference=True, unit="value", height=340
        ),
        f"Queries, keys and values of {len(words)} tokens, {WIDTH_OF_HEAD} numbers each, as three heatmaps around zero.",
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    **2. Score.** How well does the query of one token match the key of another? Their scalar product says so. It is
    divided by $\sqrt{d_h}$ so that it does not grow with the size of the head. Under a [[causal mask]] later tokens get $-\infty$.

    $$ S = \frac{QK^\top}{\sqrt{d_h}} $$
    """)
    return


@app.cell(hide_code=True)
def _():
    mask = mo.ui.switch(value=page.switch("mask", False), label="causal mask", on_change=page.keep("mask"))
    page.controls(mask=mask)
    return (mask,)


@app.cell
def _(K, Q, d_h, mask):
    scores = Q @ K.T / np.sqrt(d_h)  # (T, T)
    if mask.value:
        scores = np.where(np.tri(len(scores), dtype=bool), scores, -np.inf)
    mo.show_code()
    return (scores,)


@app.cell(hide_code=True)
def _(scores, words):
    figures.show(figures.map_figure([("scores S", scores)], words, difference=True, unit="score", height=440))
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    **3. Weigh.** The [[row softmax]] turns each row of scores into weights that add to 1: the [[attention map]]
    $A = \operatorname{softmax}(S)$. Beside it is the map that the model itself computed, stored with the weights.
    """)
    return


@app.cell
def _(scores):
    A = softmax(scores)  # (T, T), each row adds to 1
    mo.show_code()
    return (A,)


@app.cell(hide_code=True)
def _(A, mask, reference, words):
    _gap = np.abs(A - reference).max()
    _same = _gap < 2e-3  # three digits: what half precision keeps
    mo.vstack(
        [
            figures.show(
                figures.map_figure([("A, computed here", A), ("A, from the model", reference)], words, limits=(0, 1))
            ),
            mo.Html(
                labs.number(
                    f"{_gap:.1e}",
                    "largest difference to the model's own map",
                    "exact" if _same else "fails",
                    "equal up to half precision" if _same else "another map",
                )
            ),
            labs.prose(
                "The file keeps the weights in half precision, about three digits; that is all the difference there is."
                if _same
                else "You switched the mask on: this is no longer the map of the model."
                if mask.value
                else "The code above computes another map than the model did."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    How sharp should the weights be? A [[temperature]] $\tau$ divides the scores first, $\operatorname{softmax}(S/\tau)$. The model's own is 1.
    """)
    return


@app.cell(hide_code=True)
def _():
    temperature = mo.ui.slider(
        0.1,
        5.0,
        step=0.1,
        value=page.number("temperature", 4.0, 0.1, 5.0),
        label="temperature",
        show_value=True,
        debounce=True,
        on_change=page.keep("temperature"),
    )
    page.controls(temperature=temperature)
    return (temperature,)


@app.cell(hide_code=True)
def _(A, scores, temperature, words):
    tempered = softmax(scores / temperature.value)
    _largest = [float(_map.max(axis=1).mean()) for _map in (A, tempered)]
    figures.show(
        figures.map_figure(
            [("temperature 1", A), (f"temperature {temperature.value:g}", tempered)], words, limits=(0, 1)
        ),
        f"The map at temperature 1 and at {temperature.value:g}: the largest weight of a row is {_largest[0]:.2f} and "
        f"{_largest[1]:.2f}, in the mean.",
        "Raise it and every row spreads out. Lower it and each token takes from one other alone.",
    )
    return (tempered,)


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    **4. Mix.** Every token takes a weighted mean of the values, $AV$. $\WO$ writes it back into the $d$ coordinates of the
    [[residual stream]]. The head is done:

    $$ \operatorname{head}(X) = A\,V\,\WO . $$
    """)
    return


@app.cell
def _(A, V, W_O):
    output = A @ V @ W_O  # (T, T) (T, d_h) (d_h, d) = (T, d), back in the stream
    mo.show_code()
    return (output,)


@app.cell(hide_code=True)
def _(A, V, words):
    _off = np.where(np.eye(len(words), dtype=bool), 0, A)
    _off[[0, -1]] = _off[:, [0, -1]] = 0  # not the two special tokens
    _row = int(_off.max(axis=1).argmax())
    _best = [_j for _j in A[_row].argsort()[::-1][:3] if A[_row, _j] > 0.005]
    _parts = ", ".join(f"{A[_row, _j]:.0%} of *{words[_j]}*" for _j in _best)
    _rest = 1 - A[_row, _best].sum()
    mo.vstack(
        [
            figures.show(
                figures.map_figure(
                    [("V, before", V), ("A V, after", A @ V)], rows=words, difference=True, unit="value", height=340
                ),
                "The values before and after mixing: each row on the right is a weighted mean of the rows on the left.",
            ),
            labs.prose(
                f"Read one row: what **{words[_row]}** now holds is {_parts}"
                f"{f', and {_rest:.0%} of the rest' if _rest > 0.005 else ''}."
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## The claim

    Put the steps together and look at where the matrices stand.

    $$ S = \frac{1}{\sqrt{d_h}}\; X\, \underbrace{\WQ\WK^\top}_{\text{where to look}}\, X^\top $$

    $$ \operatorname{head}(X) = A\, X\, \underbrace{\WV\WO}_{\text{what to write}} $$
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.box(
        "claim",
        r"""
    **Claim 1.** A head computes with two products: the [[circuit]] $\WQ\WK^\top$, which decides where it looks, and the circuit
    $\WV\WO$, which decides what it writes. For any invertible $d_h \times d_h$ matrices $M$ and $N$ the weights

    $$ \WQ M, \quad \WK M^{-\top}, \quad \WV N, \quad N^{-1}\WO $$

    compute the same function of $X$. In each circuit $d_h^2$ directions are invisible.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    The proof is one line for each circuit:

    $$ \WQ M\,(\WK M^{-\top})^\top = \WQ M M^{-1} \WK^\top = \WQ\WK^\top $$

    $$ \WV N\, N^{-1} \WO = \WV\WO $$

    Such a change is a [[gauge]]. It asks nothing of the rest of the network: any mask, any scale, any normalisation before the
    head, any [[skip connection|skip]] around it. It does ask that nothing stands *between* the two matrices of a pair. A rotation by position (RoPE)
    or a normalisation of queries and keys stands there, and then fewer $M$ will do.

    *Elhage et al. (2021) describe the two circuits. Wang and Wang (2025) prove that for almost all weights there is no other such
    freedom inside a layer, except to renumber its heads.*
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Check it, and break it

    Draw an $M$ and an $N$ at random and use them on the head you chose. The [[condition number]] says how unevenly they
    stretch. Then choose a place where they do not belong.
    """)
    return


@app.cell(hide_code=True)
def _():
    places = {
        "inside the head, and undone in its partner": "inside",
        "in the query and the value matrix alone": "alone",
        "across this head and the next": "across",
    }
    place = mo.ui.radio(
        places,
        value=page.choice("place", "inside", places),
        label="where M and N stand",
        on_change=page.keep("place"),
    )
    log_kappa = mo.ui.slider(
        0,
        12,
        step=1,
        value=page.number("kappa", 1, 0, 12),
        label="condition number, as a power of ten",
        show_value=True,
        debounce=True,
        on_change=page.keep("kappa"),
    )
    page.controls(place=place, kappa=log_kappa)
    return log_kappa, place


@app.cell(hide_code=True)
def _(W_K, W_O, W_Q, W_V, X, d_h, head, layer, log_kappa, place, words):
    def _head(w_q, w_k, w_v, w_o):
        weights = softmax((X @ w_q) @ (X @ w_k).T / np.sqrt(d_h))
        return weights, weights @ (X @ w_v) @ w_o

    _kappa = 10.0**log_kappa.value
    if place.value == "across":
        _next = head.value % HEADS  # the head after this one
        _q, _k, _v, _o = (w[layer.value - 1, _next] for w in (MODEL.W_Q, MODEL.W_K, MODEL.W_V, MODEL.W_O))
        _M, _N = gauge.basis(_kappa, 2 * d_h, seed=1), gauge.basis(_kappa, 2 * d_h, seed=2)
        _new = (
            (np.hstack([W_Q, _q]) @ _M)[:, :d_h],
            (np.hstack([W_K, _k]) @ np.linalg.inv(_M).T)[:, :d_h],
            (np.hstack([W_V, _v]) @ _N)[:, :d_h],
            (np.linalg.inv(_N) @ np.vstack([W_O, _o]))[:d_h],
        )
    else:
        _M, _N = gauge.basis(_kappa, d_h, seed=1), gauge.basis(_kappa, d_h, seed=2)
        _undo = place.value == "inside"
        _new = (
            W_Q @ _M,
            W_K @ np.linalg.inv(_M).T if _undo else W_K,
            W_V @ _N,
            np.linalg.inv(_N) @ W_O if _undo else W_O,
        )
    (_map, _out), (_map_new, _out_new) = _head(W_Q, W_K, W_V, W_O), _head(*_new)
    map_gap = float(np.abs(_map_new - _map).max())
    output_gap = measure.relative_error(_out_new, _out)
    _bound = 100 * _kappa * EPS  # rounding, magnified by two solves with a matrix of that condition
    holds = bool(map_gap < _bound and output_gap < _bound)
    _verdict = ("exact", "exact up to rounding") if holds else ("fails", "")
    _words = lambda gap: f"{gap:.2f}" if 1e-3 <= gap < 1e3 else f"{gap:.1e}"
    _why = {
        "inside": r"""
        The matrices changed, the head did not. What is left is rounding: it grows with the condition number, because $M$ squeezes
        some directions and $M^{-1}$ must blow them up again. Try $10^{12}$. The claim is exact; the computer is not.
        """,
        "alone": r"""
        Without its partner $\WK M^{-\top}$ the product becomes $\WQ M \WK^\top$: another circuit, another map. And $\WV N \WO$
        writes something else. So $\WQ$ is not arbitrary. Only the *pair* has the freedom.
        """,
        "across": r"""
        $M$ is $2d_h \times 2d_h$ here and mixes the columns of two heads. Summed over both heads the scores agree, but the
        softmax is taken in each head alone, before any sum. The freedom ends at the border of the head.
        """,
    }[place.value]
    mo.vstack(
        [
            mo.Html(
                '<div class="numbers">'
                + labs.number(_words(map_gap), "largest difference of the attention map", *_verdict)
                + labs.number(_words(output_gap), "difference of the output, relative to its largest entry", *_verdict)
                + "</div>"
            ),
            figures.show(figures.map_figure([("before", _map), ("after", _map_new)], words, limits=(0, 1))),
            labs.prose(_why),
        ]
    )
    return holds, map_gap, output_gap


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Count the freedom

    Instead of believing the formula, let the machine count. Take a small head, $d = 12$, and nudge every entry of $\WQ$ and $\WK$
    a little. Each nudge moves the circuit $\WQ\WK^\top$ in some direction. The matrix of all these directions, the Jacobian, has
    as many vanishing singular values as there are independent nudges that the circuit does not feel.
    """)
    return


@app.cell(hide_code=True)
def _():
    small = mo.ui.slider(
        1,
        8,
        value=page.number("dh", 4, 1, 8),
        label=r"columns of the head, $d_h$",
        show_value=True,
        debounce=True,
        on_change=page.keep("dh"),
    )
    page.controls(dh=small)
    return (small,)


@app.cell(hide_code=True)
def _(guess, small):
    mo.stop(guess.value is None, mo.md("*Make your prediction first, near the top. A wrong guess costs nothing.*"))
    d, n = 12, small.value
    return d, n


@app.cell
def _(d, n):
    _q, _k = np.random.default_rng(0).standard_normal((2, d, n))
    _nudge_q = np.einsum("ia,jb->ijab", np.eye(d), _k)  # d (W_Q W_K^T)_ij / d (W_Q)_ab
    _nudge_k = np.einsum("ja,ib->ijab", np.eye(d), _q)  # d (W_Q W_K^T)_ij / d (W_K)_ab
    jacobian = np.hstack([_nudge_q.reshape(d * d, -1), _nudge_k.reshape(d * d, -1)])
    singular = np.linalg.svd(jacobian.T @ jacobian, compute_uv=False)  # squared
    dead = int((singular < 1e-12 * singular[0]).sum())
    mo.show_code()
    return dead, singular


@app.cell(hide_code=True)
def _(d, dead, n, singular):
    _i, _s = np.arange(1, len(singular) + 1), np.maximum(singular / singular[0], 1e-18)
    _felt = len(singular) - dead
    mo.vstack(
        [
            figures.show(
                figures.loss_figure(
                    [
                        figures.Curve("felt by the circuit", _i[:_felt], _s[:_felt], colour="#0072B2"),
                        figures.Curve("not felt", _i[_felt:], _s[_felt:], colour="#D55E00", dash="dot"),
                    ],
                    x_title="direction, strongest first",
                    y_title="strength (squared, relative)",
                    log_y=True,
                    height=300,
                ),
                f"Of {len(singular)} directions {dead} have strength zero up to rounding, the others are of order one.",
            ),
            mo.Html(
                labs.number(
                    f"{dead} of {2 * d * n}",
                    f"directions change nothing. The claim says d<sub>h</sub>² = {n}² = {n * n}",
                    "exact" if dead == n * n else "fails",
                    "the count agrees" if dead == n * n else "the count differs",
                )
            ),
            labs.prose(rf"""
            So the two matrices of a head give not $2\,d\,d_h$ freedoms but $2\,d\,d_h - d_h^2$. For the head at the top of this page
            that is {2 * 384 * WIDTH_OF_HEAD:,} - {WIDTH_OF_HEAD**2:,} = {2 * 384 * WIDTH_OF_HEAD - WIDTH_OF_HEAD**2:,}.
            """),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Three matrices, priced

    How much of a whole layer is invisible, and what do you lose when you drop a projection ($I$ takes its place) or tie two (one
    matrix serves as both)? Choose a size. The default is GPT-2 small. The *cache* is what a model that writes text keeps of every
    earlier token. In the last row all heads share one pair of keys and values.
    """)
    return


@app.cell(hide_code=True)
def _():
    heads = mo.ui.slider(
        steps=[1, 2, 4, 8, 12, 16, 32],
        value=page.number("heads", 12, 1, 32) if page.number("heads", 12, 1, 32) in (1, 2, 4, 8, 12, 16, 32) else 12,
        label=r"heads $H$",
        show_value=True,
        debounce=True,
        on_change=page.keep("heads"),
    )
    of_head = mo.ui.slider(
        steps=[8, 16, 32, 64, 128],
        value=page.number("width", 64, 8, 128) if page.number("width", 64, 8, 128) in (8, 16, 32, 64, 128) else 64,
        label=r"width of a head, $d_h$",
        show_value=True,
        debounce=True,
        on_change=page.keep("width"),
    )
    page.controls(heads=heads, width=of_head)
    return heads, of_head


@app.cell(hide_code=True)
def _(heads, of_head):
    d_model = heads.value * of_head.value
    _rows = []
    for _slug in (*VARIANTS, "qkv+mqa"):
        _v = variant(_slug)
        _params, _free = _v.parameters(d_model, heads.value), _v.circuit_dimension(d_model, heads.value)
        _cells = (_params, _free, _params - _free, _v.cache_numbers(d_model, heads.value))
        _rows.append(
            f"<tr><td>{badge.badge_label(_v)}</td>" + "".join(f"<td class='n'>{_c:,}</td>" for _c in _cells) + "</tr>"
        )
    price = variant("qkv").parameters(d_model, heads.value) - variant("qkv").circuit_dimension(d_model, heads.value)
    mo.Html(
        '<div class="prose markdown scroll-x"><table class="priced"><caption class="visually-hidden">Parameters, freedom and '
        f"cache of attention variants at width {d_model}</caption><thead><tr><th>one layer, d = {d_model}</th>"
        "<th class='n'>parameters<br>with W<sub>O</sub></th><th class='n'>freedom of<br>the circuits</th>"
        "<th class='n'>invisible</th><th class='n'>cached numbers<br>a token</th></tr></thead>"
        f"<tbody>{''.join(_rows)}</tbody></table></div>"
    )
    return d_model, price


@app.cell(hide_code=True)
def _(d_model, heads, of_head, price):
    labs.prose(rf"""
    With all three projections learned, $2\,d\,d_h$ = {price:,} of the {4 * d_model**2:,} parameters of a layer are invisible
    ({price / (4 * d_model**2):.1%}); with {heads.value} heads that is a share of $1/(2H)$. Read the table in pairs. Setting $\WQ = I$ and
    tying $K = V$ save the same number of parameters and leave the same freedom, but from two heads on they are different sets of
    functions, and only the tie halves the cache. $\WQ = I$ with $K = V$ has nothing invisible left: every number counts. Freedom is
    not quality, though. Which of these rows *learns* well is what parts II and III of the course find out.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## What the maps of a trained model show

    Look at the order of a pair. The score of *query* for *key* may differ from that of *key* for *query*: the map has a direction. The symmetry
    number says how much: **1** is a symmetric map, **0** has as much of one kind as of the other, **-1** is antisymmetric.

    On the left are the model's own queries and keys. On the right the keys serve as queries as well, $Q = K$: one matrix, as in one of
    the variants above. (The model was not trained that way. This shows geometry, not quality.)
    """)
    return


@app.cell(hide_code=True)
def _(head, layer, sentence):
    page.controls(sentence=sentence, layer=layer, head=head)
    return


@app.cell(hide_code=True)
def _(W_K, W_Q, X, d_h, words):
    _own = (X @ W_Q) @ (X @ W_K).T / np.sqrt(d_h)
    _tied = (X @ W_K) @ (X @ W_K).T / np.sqrt(d_h)
    symmetry = [figures.symmetry_number(_s) for _s in (_own, _tied)]
    apart = float(np.abs(softmax(_tied) - softmax(_tied).T).max())
    mo.vstack(
        [
            figures.show(
                figures.map_figure(
                    [("scores, Q and K", _own), ("scores, Q = K", _tied)],
                    words,
                    difference=True,
                    symmetry=True,
                    unit="score",
                )
            ),
            figures.show(
                figures.map_figure(
                    [("weights, Q and K", softmax(_own)), ("weights, Q = K", softmax(_tied))],
                    words,
                    symmetry=True,
                    limits=(0, 1),
                )
            ),
        ]
    )
    return apart, symmetry


@app.cell(hide_code=True)
def _(apart, symmetry):
    labs.prose(rf"""
    Under $Q = K$ the scores are scalar products of keys with keys. They are symmetric, always: **{symmetry[1]:+.2f}**. The
    weights are not quite: the two directions of a pair differ by up to **{apart:.2g}**, because the softmax divides each row
    by its own sum, and the sums differ. And look at the diagonal: a key matches itself well, so many tokens look at themselves. The
    head on the left ({symmetry[0]:+.2f} before the softmax) can do what its twin on the right cannot: score a pair one way and not
    the other.

    Go to layer 1, head 3, the head of the opening figure. Under $Q = K$ it loses the word before. Then look at layer 3,
    head 10: here the tie changes little. Why?
    """)
    return


@app.cell(hide_code=True)
def _():
    _rng = np.random.default_rng(0)
    trained_circuits = measure.circuit_symmetry(MODEL.W_Q, MODEL.W_K)  # (layers, heads)
    _spread = [w.std(axis=(-2, -1), keepdims=True) for w in (MODEL.W_Q, MODEL.W_K)]
    random_circuits = measure.circuit_symmetry(*(_rng.standard_normal(MODEL.W_Q.shape) * s for s in _spread))
    _rows = [f"layer {_i + 1}" for _i in range(LAYERS)]
    mo.vstack(
        [
            figures.show(
                figures.map_figure(
                    [("trained", trained_circuits), ("random, same size", random_circuits)],
                    [str(_i + 1) for _i in range(HEADS)],
                    rows=_rows,
                    difference=True,
                    limits=(-0.75, 0.75),
                    unit="symmetry",
                    height=260,
                ),
                f"Symmetry of the query-key circuit of all {LAYERS * HEADS} heads: between {trained_circuits.min():.2f} and "
                f"{trained_circuits.max():.2f} in the trained model, within {np.abs(random_circuits).max():.2f} of zero for random "
                "matrices of the same size.",
                "Columns are heads. This is the symmetry of the circuit, so it holds for every sentence. The tie costs layer 3, head 10 "
                "little because its circuit is the most symmetric of all.",
            ),
            mo.Html(
                '<div class="numbers">'
                + labs.number(
                    f"{(trained_circuits > np.abs(random_circuits).max()).sum()} of {trained_circuits.size}",
                    f"trained heads lean to the symmetric side (mean {trained_circuits.mean():+.2f})",
                )
                + labs.number(
                    f"±{np.abs(random_circuits).max():.2f}",
                    f"the largest among {random_circuits.size} random heads: the control",
                )
                + "</div>"
            ),
        ]
    )
    return random_circuits, trained_circuits


@app.cell(hide_code=True)
def _(random_circuits, trained_circuits):
    labs.prose(rf"""
    ## What the papers found, what we find

    | statement | where | there | here |
    | --- | --- | --- | --- |
    | invisible directions in GPT-2 small | Wang and Wang (2025) | over 1.1 million of 110 million | $12 \cdot 2 \cdot 768 \cdot 64$ = {12 * 2 * 768 * 64:,} |
    | without a causal mask, query-key circuits lean to symmetry | Saponati et al. (2025) | in every such model they tested | mean {trained_circuits.mean():+.2f}, random heads within ±{np.abs(random_circuits).max():.2f} |
    | three projections, three degrees of freedom | said in many introductions | not counted | two circuits, of $2\,d\,d_h - d_h^2$ each |

    The first row agrees to the digits that are published. In the second only the sign can be compared: their score of symmetry is
    another one, and MiniLM is one model: the spread here is over heads, not over models.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Limits

    **A map is not what is written.** It shows the weights $A$, and a head writes $A\,V\WO$. A large weight on a short vector writes little.
    On the left is a head's map; on the right each weight is multiplied by the length of the vector it moves, and rows are
    scaled to add to 1 again.
    """)
    return


@app.cell(hide_code=True)
def _():
    _l, _h, _s = 2, 7, MODEL.sentences[1]
    _vectors = np.linalg.norm(_s.x[_l] @ MODEL.W_V[_l, _h] @ MODEL.W_O[_l, _h], axis=1)
    _share = _s.maps[_l, _h] * _vectors
    _share = _share / _share.sum(axis=1, keepdims=True)
    _special = [float(_m[1:-1][:, [0, -1]].sum(axis=1).mean()) for _m in (_s.maps[_l, _h], _share)]
    mo.vstack(
        [
            figures.show(
                figures.map_figure(
                    [("weight", _s.maps[_l, _h]), ("share of what is written", _share)], _s.tokens, limits=(0, 1)
                ),
                f"Layer 3, head 8: the two special tokens receive {_special[0]:.0%} of the weight and {_special[1]:.0%} of what is "
                "written; the rest goes to words.",
            ),
            mo.Html(
                '<div class="numbers">'
                + labs.number(f"{_special[0]:.0%}", "of the weight goes to [CLS] and [SEP] (layer 3, head 8)")
                + labs.number(f"{_special[1]:.0%}", "of what is written comes from them")
                + "</div>"
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    - **The symmetry of scores is not a property of the map.** Add a number to a whole row of scores and the softmax deletes it,
      while the symmetry number of the scores moves. That of the circuit does not depend on a sentence.
    - **An even map counts as symmetric.** A head that spreads its weight evenly gets a symmetry near 1 and says nothing.
    - **The negative control** of the claim is above: *in the query and the value matrix alone*, and *across this head and the next*. If those held as
      well, the check would be worthless.
    - **Counting is not judging.** A variant with less freedom is not worse by that alone; training decides.
    - One trained model, an encoder without a causal mask, and two sentences. The mask you can switch on was not there in training.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Exercises

    Each answers at once. Hints and the solution are folded below it.
    """)
    return


@app.cell(hide_code=True)
def _():
    order = exercises.ask("01-order")
    order
    return (order,)


@app.cell(hide_code=True)
def _(order):
    exercises.reply(order)
    return


@app.cell(hide_code=True)
def _():
    undo = exercises.ask("01-undo")
    undo
    return (undo,)


@app.cell(hide_code=True)
def _(undo):
    exercises.reply(undo)
    return


@app.cell(hide_code=True)
def _():
    left = exercises.ask("01-freedom")
    left
    return (left,)


@app.cell(hide_code=True)
def _(left):
    exercises.reply(left)
    return


@app.cell(hide_code=True)
def _():
    parameters = exercises.ask("01-parameters")
    parameters
    return (parameters,)


@app.cell(hide_code=True)
def _(parameters):
    exercises.reply(parameters)
    return


@app.cell(hide_code=True)
def _(freedom, guess):
    mo.vstack(
        [
            labs.prose("## Your prediction"),
            exercises.compare(
                guess,
                next(_k for _k, _v in freedom.items() if _v == "d_h²"),
                r"Any invertible $d_h \times d_h$ matrix $M$ can stand between the two, and nothing else can.",
            ),
        ]
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## Read on

    - Vaswani et al. (2017), [Attention Is All You Need](https://arxiv.org/abs/1706.03762): the three projections, section 3.2.
    - Elhage et al. (2021), [A Mathematical Framework for Transformer Circuits](https://transformer-circuits.pub/2021/framework/index.html):
      the two circuits.
    - Wang and Wang (2025), [the gauge group of attention](https://openreview.net/forum?id=KrkbYbK0cH): the proof that there is no more.
    - Saponati et al. (2025), [The underlying structures of self-attention](https://arxiv.org/abs/2502.10927): symmetric and directional
      circuits.
    - Kobayashi et al. (2020), [Attention is Not Only a Weight](https://arxiv.org/abs/2004.10102): what a map leaves out.

    **Next:** this lab moved numbers between the two matrices of a pair, inside a head. Lab 02 moves the stream itself, and a whole
    matrix disappears.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.footer("three_projections")
    return


if __name__ == "__main__":
    app.run()

import marimo

__generated_with = "0.25.2"
app = marimo.App(
    width="medium",
    app_title="00 Start here",
    css_file="lab.css",
    html_head_file="head.html",
)

with app.setup(hide_code=True):
    import marimo as mo
    import numpy as np

    from qkvlab.course import labs, minilm
    from qkvlab.show import figures, page
    from qkvlab.theory import gauge


@app.cell(hide_code=True)
def _():
    labs.outline("start_here")
    return


@app.cell(hide_code=True)
def _():
    labs.header("start_here")
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## One of these has no query matrix

    A trained language model reads *The quick brown fox jumps over the lazy dog.* Each square says how much one word (row)
    takes from another (column): an [[attention map]]. Two copies of one layer made these maps. In one copy the matrix $\WQ$ that
    makes the [[query|queries]] was deleted. Which one?
    """)
    return


@app.cell(hide_code=True)
def _():
    _model, _layer, _head = minilm.load(), 1, 4
    _sentence = _model.sentences[0]
    _stream = _sentence.x[_layer, :, :-1]  # (T, d)
    _w_q, _w_k = (
        np.concatenate(w[_layer], axis=1) for w in (_model.W_Q, _model.W_K)
    )  # (d+1, d), the last row is the bias
    _theta, _shift = _w_q[:-1], _w_q[-1]
    _columns = slice(_head * 32, (_head + 1) * 32)

    def _map(q, k):
        scores = q[:, _columns] @ k[:, _columns].T / np.sqrt(32)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)

    _with = _map(_stream @ _theta + _shift, _stream @ _w_k[:-1] + _w_k[-1])
    _moved = _stream @ _theta + _shift  # the layer's input in its new basis; the queries are this input itself
    _keys = _moved @ gauge.read(_theta, _w_k[:-1]) + gauge.read_bias(_theta, _w_k[:-1], _w_k[-1], _shift)
    _without = _map(_moved, _keys)
    difference = float(np.abs(_with - _without).max())
    figures.show(
        figures.map_figure([("A", _with), ("B", _without)], _sentence.tokens),
        f"Two attention maps of the same sentence, A with a query matrix and B without: they agree to {difference:.0e}.",
        "[CLS] and [SEP] are marks that this model puts before and after a sentence.",
    )
    return (difference,)


@app.cell(hide_code=True)
def _(difference):
    guess = mo.ui.radio(["A has none", "B has none", "I cannot tell"], label="**Which has no query matrix?**")
    answer = f"""
    The two maps differ by **{difference:.0e}**, which is rounding. B has none: its queries are the layer's input itself.
    What the matrix did has moved into the weights around it.
    """
    guess
    return answer, guess


@app.cell(hide_code=True)
def _(answer, guess):
    mo.stop(guess.value is None, mo.md("*Choose one. A wrong guess costs nothing.*"))
    labs.box(
        "verdict verdict-right" if guess.value == "I cannot tell" else "verdict verdict-noise",
        f"{'Nobody can.' if guess.value == 'I cannot tell' else 'You had one chance in two: nobody can tell.'} {answer}",
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    Here one layer of a trained model gives up its $\WQ$. Can every layer of a network do that at once? Does a network that never
    had the matrix *learn* as well? And if queries can go, what about keys and values? These are the questions of the course. They
    come from two papers:

    - Karbevski and Mijoski (2025), [arXiv 2510.23912](https://arxiv.org/abs/2510.23912), *paper A* from here on: replace
      $\WQ$ by the identity.
    - Kayyam, Madan Gopal and Lewis (2026), [arXiv 2606.04032](https://arxiv.org/abs/2606.04032), *paper B*: let two or three
      of the [[projection|projections]] be one.

    You check what they state, to the last digit where it is exact and with seeds and error bars where it is not.

    ## The course

    Every lab answers one question and builds on the labs before it. Begin with ((three_projections)).
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.course_map()
    return


@app.cell(hide_code=True)
def _():
    labs.prose(
        r"""
    ## How to use a lab

    Try it here. Move the slider: the figure follows, and so does the address in your browser.
    """,
        twin=r"""
    ## How to use a lab

    Run all cells (*Run › Run All Cells* in the menu). Then move the slider: the figure follows.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    temperature = mo.ui.slider(
        0.1,
        5.0,
        step=0.1,
        value=page.number("temperature", 1.0, 0.1, 5.0),
        label="temperature",
        show_value=True,
        debounce=True,
        on_change=page.keep("temperature"),
    )
    page.controls(temperature=temperature)
    return (temperature,)


@app.cell(hide_code=True)
def _(temperature):
    _scores = np.array([2.0, 1.0, 0.5, 0.0, -1.0])
    _weights = np.exp(_scores / temperature.value)
    _weights /= _weights.sum()
    figures.show(
        figures.bar_figure(["fox", "dog", "quick", "lazy", "the"], _weights, y_title="weight", height=220),
        f"At temperature {temperature.value:g} the largest of five weights is {_weights.max():.2f}, the smallest "
        f"{_weights.min():.2f}.",
        "Five scores become weights that add to 1. Low temperature: one word takes all. High: all take the same.",
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    - **Train.** Where a model learns, you press *Train*, and can pause, step and go on. Each lab opens with runs that come with it, so
      there is something to see before you train.
    - **Predict, then look.** Labs ask for a guess first and show it to you again at the end. Exercises answer at once.
    - **Keyboard.** Tab moves from control to control, the arrow keys move a slider.
    """)
    return


@app.cell(hide_code=True)
def _():
    labs.prose(
        rf"""
    - **Words with dots** below them, like this [[softmax]], explain themselves: point at them, tap them, or reach them with Tab.
    - **Links.** The address holds your settings. [This link]({labs.link("start_here", temperature=0.3)}) opens this page at temperature
      0.3; send one like it to a friend or a class.
    - **Code.** The menu at the top right shows the code of a page. `qkvlab --edit` in a terminal opens the labs for editing.
    - **Teachers.** Add `&hide=temperature` to the address and that control is gone ([like this]({labs.link("start_here", hide="temperature")})).
    """,
        twin=r"""
    - **Words with dots** below them, like this [[softmax]], explain themselves when you point at them.
    - **Code.** Most cells show only what they make. Click the three dots of one to see its code. Change it and run it (Shift-Enter): the cells
      that depend on it run again. What a deleted cell has defined stays until the kernel restarts.
    - **Settings** last until you run all cells again; on the pages that `qkvlab` opens, the address holds them. To start from other
      settings, change the first value in the control's cell. To hide a control from a class, leave it out of `page.controls`.
    """,
    )
    return


@app.cell(hide_code=True)
def _():
    labs.prose(r"""
    ## This machine

    Nothing here needs a GPU or a network. The check takes some seconds: it looks at the installation and the data, and times a few
    steps of the training you meet in lab 08.
    """)
    return


@app.cell(hide_code=True)
def _():
    look = mo.ui.run_button(label="Check this machine")
    look
    return (look,)


@app.cell(hide_code=True)
def _(look):
    mo.stop(not look.value)
    from qkvlab.cli import doctor
    from qkvlab.training.recipes import recipe
    from qkvlab.training.trainer import Trainer

    with mo.status.spinner("Looking at packages and data"):
        checks = [c for c in doctor.examine() if c.name != "Browser tests"]  # those are for who develops qkvlab
    _config, _steps = recipe("fast"), 20
    with mo.status.spinner("Timing twenty steps of training"):
        _trainer, _seconds = Trainer(_config), [0.0]
        for _record in _trainer:
            _seconds.append(_record.seconds)
            if _record.step >= _steps:
                break
    milliseconds = 1000 * float(np.median(np.diff(_seconds)))
    _words = {"OK": ("exact", "fine"), "WARN": ("within noise", "look"), "FAIL": ("fails", "fails")}
    _rows = "".join(
        f"<tr><td>{c.name}</td><td>{labs.state(*_words[c.state])}</td><td>{c.found}{f'<br><b>{c.todo}</b>' if c.todo else ''}</td></tr>"
        for c in checks
    )
    mo.vstack(
        [
            mo.Html(
                labs.number(
                    f"{milliseconds:.0f} ms",
                    f"a training step: {_config.steps} steps take about {_config.steps * milliseconds / 1000:.0f} s",
                )
                + '<div class="markdown prose dark:prose-invert scroll-x"><table><tbody>'
                + f"{_rows}</tbody></table></div>"
            ),
            labs.prose("`qkvlab doctor` in a terminal says the same, and more."),
        ]
    )
    return checks, milliseconds


@app.cell(hide_code=True)
def _():
    labs.footer("start_here")
    return


if __name__ == "__main__":
    app.run()

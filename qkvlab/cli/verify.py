"""`qkvlab verify`: recompute the exact statements of the course and say of each whether it holds.

Every statement is an equation, checked in float64 on random weights and on a trained model. Its error is the largest
difference of the two sides, relative to the largest entry; the bound leaves room for rounding and for nothing else. The
controls are equations that are *false*: a check that lets one of them pass could let anything pass, and fails.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import click
import numpy as np

from qkvlab.theory import gauge, reference
from qkvlab.theory.measure import relative_error
from qkvlab.theory.reference import Net, Weights

T, D = 12, 24  # tokens and width of the random layers


@dataclass(frozen=True)
class Result:
    statement: str
    source: str
    error: float
    bound: float
    control: bool = False  # false on purpose

    @property
    def ok(self) -> bool:
        return self.bound < self.error < np.inf if self.control else self.error <= self.bound

    @property
    def verdict(self) -> str:
        if self.control:
            return "fails, as it must" if self.ok else "PASSES, and must not"
        return "exact" if self.ok else "FAILS"


def random_layer(bias: bool = False, **options: Any) -> tuple[Net, Weights, np.ndarray]:
    """One attention layer and an input (T, D). `options` are fields of `Net`; 3 heads unless they say otherwise."""
    rng = np.random.default_rng(0)
    net = Net(**({"layers": 1, "heads": 3} | options))
    narrow = D // net.heads * (net.kv_heads or net.heads)
    weights: Weights = {}
    for m, width in (("Q", D), ("K", narrow), ("V", narrow), ("O", D)):
        weights[f"0.W_{m}"] = rng.standard_normal((D, width)) / np.sqrt(D)
        if bias:
            weights[f"0.b_{m}"] = rng.standard_normal(width)
    return net, weights, rng.standard_normal((T, D))


def rebased(weights: Weights, theta: np.ndarray, erase: str = "", leave: str = "") -> tuple[Weights, np.ndarray]:
    """The layer's weights for the input x Theta + t, and t: the bias of the matrix that becomes I, if it has one.

    `erase`: the letter of that matrix; identity and zero bias are written down, not computed. `leave`: the letter of a
    matrix that is forgotten.
    """
    new, shift = dict(weights), weights.get(f"0.b_{erase}", np.zeros(len(theta)))
    for m in "QKV":
        if m == erase:
            new[f"0.W_{m}"] = np.eye(len(theta))
            new[f"0.b_{m}"] = np.zeros(len(theta))
        elif m != leave:
            new[f"0.W_{m}"] = gauge.read(theta, weights[f"0.W_{m}"])
            bias = weights.get(f"0.b_{m}", np.zeros(weights[f"0.W_{m}"].shape[1]))
            new[f"0.b_{m}"] = gauge.read_bias(theta, weights[f"0.W_{m}"], bias, shift)
    return new, shift


def lemma(erase: str = "", leave: str = "", heedless: bool = False, **options: Any) -> float:
    """Both sides of lemma 3.1 on a random layer, Theta = W_`erase` or random. `heedless`: W becomes I, nothing else."""
    net, weights, x = random_layer(**options)
    theta = weights[f"0.W_{erase}"] if erase else gauge.basis(10, D)
    new, shift = rebased(weights, theta, erase, leave)
    there = x @ theta + shift
    if heedless:
        new, there = weights | {f"0.W_{erase}": np.eye(D)}, x
    return relative_error(reference.attention(net, new, "0.", there), reference.attention(net, weights, "0.", x))


def trained_model() -> float:
    """Lemma 3.1 with Theta = W_Q and t = b_Q on the six layers of MiniLM and two sentences: the largest error."""
    from qkvlab.course import minilm

    model, errors = minilm.load(), []
    layers, heads, rows, width = model.W_Q.shape
    net = Net(layers=1, heads=heads, causal=False)
    for i in range(layers):
        projections = {"Q": model.W_Q[i], "K": model.W_K[i], "V": model.W_V[i]}  # (heads, d + 1, d_h), bias last
        whole = {m: w.swapaxes(0, 1).reshape(rows, -1) for m, w in projections.items()}
        weights = {f"0.W_{m}": w[:-1] for m, w in whole.items()} | {f"0.b_{m}": w[-1] for m, w in whole.items()}
        weights["0.W_O"] = model.W_O[i].reshape(heads * width, -1)
        new, shift = rebased(weights, weights["0.W_Q"], "Q")
        for sentence in model.sentences:
            x = sentence.x[i][:, :-1]
            there = x @ weights["0.W_Q"] + shift
            old_and_new = (reference.attention(net, w, "0.", h) for w, h in ((new, there), (weights, x)))
            errors.append(relative_error(*old_and_new))
    return max(errors)


def keys_suffice() -> float:
    """V = K (W_K^-1 W_V)."""
    _, w, x = random_layer()
    return relative_error((x @ w["0.W_K"]) @ gauge.read(w["0.W_K"], w["0.W_V"]), x @ w["0.W_V"])


def network(bases: int, norm: str = "none") -> float:
    """W_Q = I in a network of two layers with all skips: in the first one by one global basis, or in both by two.

    The global basis is theorem 4.1: embeddings move, every matrix that reads undoes it, every one that writes takes
    part. With two bases the second layer reads in its own, and nobody translates what the skips bring.
    """
    rng = np.random.default_rng(0)
    net = Net(layers=2, heads=3, norm=norm, activation="relu")
    old: Weights = {"embed": rng.standard_normal((10, D)), "readout": rng.standard_normal((D, 10))}
    shapes = dict.fromkeys(("W_Q", "W_K", "W_V", "W_O"), (D, D)) | {"W_1": (D, 4 * D), "W_2": (4 * D, D)}
    for layer in range(2):
        for name, shape in shapes.items():
            old[f"{layer}.{name}"] = rng.standard_normal(shape) / np.sqrt(shape[0])
    thetas = [old["0.W_Q"], old["1.W_Q" if bases == 2 else "0.W_Q"]]
    new: Weights = {"embed": gauge.write(thetas[0], old["embed"]), "readout": gauge.read(thetas[1], old["readout"])}
    for name, weight in old.items():
        if name[0] in "01":
            verb = gauge.write if name[2:] in ("W_O", "W_2") else gauge.read
            new[name] = verb(thetas[int(name[0])], weight)
    ids = rng.integers(0, 10, (1, T))
    return relative_error(reference.forward(net, new, ids), reference.forward(net, old, ids))


def norm_commutes(kind: str, rotation: bool) -> float:
    """The best matrix M in N(x Theta) = N(x) M by least squares over 200 tokens; Theta random, or a rotation."""
    rng = np.random.default_rng(0)
    x, theta = rng.standard_normal((200, D)), gauge.basis(1 if rotation else 10, D)
    normed, wanted = (reference.norm(Net(1, 1, norm=kind), {}, "", h) for h in (x, x @ theta))
    return relative_error(normed @ np.linalg.lstsq(normed, wanted, rcond=None)[0], wanted)


A = "paper A, "
LEMMA = A + "lemma 3.1"
COROLLARY = LEMMA + ", corollary"
SHIFT = LEMMA + ", with a shift"
STATEMENTS: tuple[tuple[str, str, Callable[[], float], float], ...] = (
    ("attention of XΘ with Θ⁻¹W is attention of X with W: one head, any Θ", LEMMA, lambda: lemma(heads=1), 1e-13),
    ("the same with three heads and a causal mask", LEMMA, lambda: lemma(), 1e-13),
    ("the same without a mask", LEMMA, lambda: lemma(causal=False), 1e-13),
    ("the same with rotary positions (RoPE)", LEMMA, lambda: lemma(rope_base=10_000.0), 1e-13),
    ("the same with normalised queries and keys", LEMMA, lambda: lemma(qk_norm=True), 1e-13),
    ("the same with one key/value head for all queries", LEMMA, lambda: lemma(kv_heads=1), 1e-13),
    ("the same with biases", LEMMA, lambda: lemma(bias=True), 1e-13),
    ("Θ = W_Q: the query matrix becomes I", COROLLARY, lambda: lemma("Q"), 1e-12),
    ("Θ = W_K: the key matrix becomes I", COROLLARY, lambda: lemma("K"), 1e-12),
    ("Θ = W_V: the value matrix becomes I", COROLLARY, lambda: lemma("V"), 1e-12),
    ("Θ = W_Q, t = b_Q: query matrix and query bias are gone", SHIFT, lambda: lemma("Q", bias=True), 1e-12),
    ("the same in each of MiniLM's six trained layers", SHIFT, trained_model, 1e-10),
    ("the keys hold the values: V = K W_K⁻¹W_V", "Graef and Wasielewski 2025", keys_suffice, 1e-12),
    ("W_Q = I in one layer of a network with all skips and no norm", A + "theorem 4.1", lambda: network(1), 1e-11),
    ("RMSNorm passes a rotation", "lab 02", lambda: norm_commutes("rms", True), 1e-12),
)
CONTROLS: tuple[tuple[str, str, Callable[[], float], float], ...] = (
    ("W_V is left in the old basis", LEMMA, lambda: lemma(leave="V"), 1e-3),
    ("W_K is left in the old basis", LEMMA, lambda: lemma(leave="K"), 1e-3),
    ("W_Q is replaced by I and nothing else is changed", LEMMA, lambda: lemma("Q", heedless=True), 1e-3),
    ("W_Q = I in two layers with all skips", A + "theorem 4.1", lambda: network(2), 1e-3),
    ("W_Q = I in one layer with all skips and RMSNorm", A + "theorem 4.1", lambda: network(1, "rms"), 1e-3),
    ("RMSNorm passes any Θ", "lab 02", lambda: norm_commutes("rms", False), 1e-3),
    ("LayerNorm passes a rotation", "lab 02", lambda: norm_commutes("layer", True), 1e-3),
)


def results() -> Iterator[Result]:
    """Every statement and then every control, computed now."""
    for control, table in ((False, STATEMENTS), (True, CONTROLS)):
        for statement, source, compute, bound in table:
            yield Result(statement, source, compute(), bound, control)


@click.command("verify")
@click.option("--json", "as_json", is_flag=True, help="Print the results as a JSON list.")
def command(as_json: bool) -> None:
    """Recompute the exact statements of the course. Exit code 1 when one fails or a control passes."""
    found = list(results())
    if as_json:
        fields = ("statement", "source", "error", "bound", "control", "verdict", "ok")
        click.echo(json.dumps([{f: getattr(r, f) for f in fields} for r in found], indent=2, ensure_ascii=False))
    else:
        show(found)
    raise SystemExit(not all(r.ok for r in found))


def show(found: list[Result]) -> None:
    from qkvlab.cli.runs import print_table

    titles = "Statements: the error is rounding", "Controls: false on purpose, the error must be large"
    tally = []
    for control, title in enumerate(titles):
        rows = [r for r in found if r.control == control]
        tally.append(f"{sum(r.ok for r in rows)} of {len(rows)}")
        click.secho(f"\n{title}", bold=True)
        cells = [(r.statement, r.source, f"{r.error:.1e}", f"{r.bound:.0e}", r.verdict) for r in rows]
        print_table(("statement", "source", "error", "bound", ""), cells, left=2)
    click.echo(f"\n{tally[0]} statements hold, {tally[1]} controls fail as they must.")
    for r in found:
        if not r.ok:
            click.secho(f"{r.verdict}: {r.statement} (error {r.error:.1e}, bound {r.bound:.0e})", fg="red", bold=True)

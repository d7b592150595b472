"""The named variants of attention: which projections exist, which are tied, which heads are shared.

A variant is three words (where the queries, keys and values come from), a number of key/value heads and a ring for the
2-D positional term. Everything that follows from it without running anything, parameters, circuit dimension and cache,
is exact arithmetic here (the circuit dimensions are derived in `Variant.circuit_dimension`). No torch.

Letters: d the width, H the query heads, d_h = d/H, G the key/value heads.
Sources: paper A (arXiv 2510.23912) for W_Q = I, paper B (arXiv 2606.04032) for the ties and for (X)+.
"""

import re
from dataclasses import dataclass
from typing import Literal

POS2D_CHANNELS = 10  # m in paper B for its synthetic tasks and sets (50 for its vision transformers)

# Teaching order: the reference, paper A and its mirror images, paper B, then what neither paper ran.
# slug -> (label, the papers' own spelling, colour, dash). Okabe-Ito, the last one from Tol's muted set.
_STYLE = {
    "qkv": ("Q, K, V", "QKV", "#7f7f7f", "solid"),
    "identity-q": ("W_Q=I", "W_Q = I", "#0072B2", "solid"),
    "identity-k": ("W_K=I", "", "#E69F00", "dashdot"),
    "identity-v": ("W_V=I", "", "#F0E442", "longdashdot"),
    "tie-kv": ("Q, K=V", "Q-K=V", "#D55E00", "dash"),
    "tie-qk": ("Q=K, V", "Q=K-V", "#56B4E9", "longdash"),
    "tie-qkv": ("Q=K=V", "Q=K=V", "#CC79A7", "dot"),
    "identity-q+tie-kv": ("W_Q=I, K=V", "", "#009E73", "dashdot"),
    "identity-q+identity-v": ("W_Q=I, W_V=I", "", "#999933", "dash"),
}
VARIANTS: tuple[str, ...] = tuple(_STYLE)

_WORDS = {  # a slug's words -> the fields they set
    "qkv": {},
    "identity-q": {"query": "identity"},
    "identity-k": {"key": "identity"},
    "identity-v": {"value": "identity"},
    "tie-kv": {"value": "key"},
    "tie-qk": {"query": "key"},
    "tie-qkv": {"query": "key", "value": "key"},
}


@dataclass(frozen=True)
class Variant:
    """Where the queries, keys and values of a head come from, and how many key/value heads there are.

    "own" is a learned matrix, "identity" is the input itself (the matrix is I), "key" is whatever the keys are: the
    same tensor, before QK-norm and RoPE. `kv_heads` None is as many as query heads. `pos2d` adds paper B's (X)+ term.

    Raises ValueError for what cannot be: a word outside the three, a tie to a key that is itself the identity (say
    "identity" then), or `kv_heads` together with a role that has to be as wide as the stream.
    """

    query: Literal["own", "identity", "key"] = "own"
    key: Literal["own", "identity"] = "own"
    value: Literal["own", "identity", "key"] = "own"
    kv_heads: int | None = None
    pos2d: bool = False

    def __post_init__(self) -> None:
        for role, allowed in (
            ("query", ("own", "identity", "key")),
            ("key", ("own", "identity")),
            ("value", ("own", "identity", "key")),
        ):
            if getattr(self, role) not in allowed:
                raise ValueError(f"{role}={getattr(self, role)!r}: allowed are {', '.join(allowed)}")
        if self.key == "identity" and "key" in (self.query, self.value):
            role = "query" if self.query == "key" else "value"
            raise ValueError(f"{role}='key' with key='identity' is the identity: say {role}='identity'")
        if self.kv_heads is None:
            return
        if not isinstance(self.kv_heads, int) or self.kv_heads < 1:
            raise ValueError(f"kv_heads={self.kv_heads!r}: allowed is a whole number from 1 on, or None")
        wide = ["Q=K"] * (self.query == "key") + ["W_K=I"] * (self.key == "identity")
        wide += ["W_V=I"] * (self.value == "identity")
        if wide:
            raise ValueError(
                f"kv_heads={self.kv_heads} is impossible with {' and '.join(wide)}: that role is as wide as the "
                "stream, so it has one head for each query head. Allowed with fewer key/value heads: qkv, identity-q, "
                "tie-kv, identity-q+tie-kv"
            )

    # --- names and looks ----------------------------------------------------------------------------------------

    @property
    def base(self) -> str:
        """The slug without shared heads and without the 2-D term: the variant's family."""
        words = ["tie-qkv"] if self.query == self.value == "key" else []
        if not words:
            words += {"own": [], "identity": ["identity-q"], "key": ["tie-qk"]}[self.query]
            words += ["identity-k"] if self.key == "identity" else []
            words += {"own": [], "identity": ["identity-v"], "key": ["tie-kv"]}[self.value]
        return "+".join(words) or "qkv"

    @property
    def slug(self) -> str:
        """The name for files, links and the command line: `variant(v.slug) == v`."""
        heads = "" if self.kv_heads is None else "+mqa" if self.kv_heads == 1 else f"+gqa{self.kv_heads}"
        return self.base + heads + ("+pos2d" if self.pos2d else "")

    @property
    def label(self) -> str:
        """The name in legends and tables, for example "Q, K=V" or "(Q=K, V)+"."""
        text = _STYLE[self.base][0] if self.base in _STYLE else ", ".join(_STYLE[w][0] for w in self.base.split("+"))
        text = f"({text})+" if self.pos2d else text
        if self.kv_heads is None:
            return text
        return f"{text}, {self.kv_heads} K/V head{'s' if self.kv_heads > 1 else ''}"

    @property
    def paper(self) -> str:
        """The papers' own spelling ("Q-K=V", "(Q=K-V)+", "Q-GQA-4", "MQA"), or "" where neither has the variant."""
        if self.kv_heads is not None:
            if self.base not in ("qkv", "tie-kv") or self.pos2d:
                return ""
            shared = "MQA" if self.kv_heads == 1 else f"GQA-{self.kv_heads}"
            return shared if self.base == "qkv" else f"Q-{shared}"
        name = _STYLE[self.base][1] if self.base in _STYLE else ""
        if self.pos2d:
            return f"({name})+" if self.base in ("tie-qk", "tie-qkv") else ""
        return name

    @property
    def colour(self) -> str:
        """Line colour (hex), one a family; the reference qkv is mid-grey."""
        return _STYLE[self.base][2] if self.base in _STYLE else "#999933"

    @property
    def dash(self) -> str:
        """Plotly dash: one a family, others for its relatives, so that colour alone never tells two lines apart."""
        if self.pos2d:
            return "2px,3px"
        if self.kv_heads is not None:
            return "9px,3px,2px,3px,2px,3px" if self.kv_heads == 1 else "14px,4px,4px,4px"
        return _STYLE[self.base][3] if self.base in _STYLE else "longdashdot"

    # --- arithmetic ---------------------------------------------------------------------------------------------

    def groups(self, d: int, heads: int) -> int:
        """The number G of key/value heads at width `d` with `heads` query heads.

        Raises ValueError when `d` is not a multiple of `heads` or `heads` not a multiple of `kv_heads`.
        """
        if d < 1 or heads < 1 or d % heads:
            raise ValueError(f"width={d}, heads={heads}: the width must be a positive multiple of the heads")
        kv_heads = heads if self.kv_heads is None else self.kv_heads
        if heads % kv_heads:
            allowed = ", ".join(str(g) for g in range(1, heads + 1) if heads % g == 0)
            raise ValueError(f"kv_heads={kv_heads} does not divide heads={heads}: allowed are {allowed}")
        return kv_heads

    def parameters(self, d: int, heads: int, bias: bool = False, channels: int = POS2D_CHANNELS) -> int:
        """Attention parameters of one layer, W_O included, and the m+1 scalars of the 2-D term where there is one."""
        narrow = self.groups(d, heads) * (d // heads)
        widths = [d]  # W_O
        widths += [d] if self.query == "own" else []
        widths += [narrow] * ((self.key == "own") + (self.value == "own"))
        return sum(widths) * (d + bias) + (channels + 1 if self.pos2d else 0)

    def circuit_dimension(self, d: int, heads: int) -> int:
        """Dimension of the set of circuits (W_Q^h W_K^hT, W_V^h W_O^h) of one layer: parameters less what is redundant.

        What is redundant, for each of the G key/value heads: any invertible d_h x d_h matrix between W_Q and W_K when
        both are learned and independent (d_h^2), only an orthogonal one when Q=K (d_h(d_h-1)/2), none when either is I;
        and any invertible matrix between W_V and W_O when W_V is learned on its own (d_h^2). Under K=V one matrix
        serves both pairs, so it counts once. No RoPE, no biases; the 2-D term's scalars are left out.
        """
        groups, d_h = self.groups(d, heads), d // heads
        if self.query == "key":
            between_q_and_k = d_h * (d_h - 1) // 2
        else:
            between_q_and_k = d_h * d_h if self.query == self.key == "own" else 0
        between_v_and_o = d_h * d_h if self.value == "own" else 0
        plain = Variant(self.query, self.key, self.value, self.kv_heads)
        return plain.parameters(d, heads) - groups * (between_q_and_k + between_v_and_o)

    def cache_numbers(self, d: int, heads: int) -> int:
        """Numbers a decoder must keep for each token and layer: keys and values, or the keys alone where V is K."""
        one = self.value == "key" or self.key == self.value == "identity"
        return (1 if one else 2) * self.groups(d, heads) * (d // heads)


def variant(slug: str) -> Variant:
    """The variant a slug names: words joined by "+", as in "qkv", "tie-kv+gqa2", "identity-q+tie-kv", "tie-qk+pos2d".

    Raises ValueError that lists what is allowed, or says why a combination is impossible.
    """
    fields: dict = {}
    for word in slug.split("+"):
        shared = re.fullmatch(r"gqa([1-9]\d*)", word)
        if word in _WORDS:
            new: dict = dict(_WORDS[word])
        elif word == "mqa" or shared:
            new = {"kv_heads": int(shared[1]) if shared else 1}
        elif word == "pos2d":
            new = {"pos2d": True}
        else:
            raise ValueError(
                f"variant {slug!r}: {word!r} is not a word of it. Allowed: {', '.join(VARIANTS)}, "
                "each with +gqaN or +mqa (fewer key/value heads) or +pos2d (2-D positional term)"
            )
        if fields.keys() & new.keys():
            raise ValueError(f"variant {slug!r}: {word!r} says {', '.join(fields.keys() & new.keys())} a second time")
        fields |= new
    if slug.split("+")[0] not in _WORDS:
        raise ValueError(f"variant {slug!r}: it begins with one of {', '.join(_WORDS)}")
    return Variant(**fields)

"""Figures: what they show, what they say, and what they refuse."""

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from qkvlab.models.variants import variant
from qkvlab.show import figures, page
from qkvlab.show.figures import Curve

MAP = np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.3, 0.3, 0.4]])
WORDS = ["the", "a", "the"]  # a token may come twice


def test_a_map_is_a_matrix_rows_down_on_cividis_with_its_labels():
    fig = figures.map_figure([("head 1", MAP), ("head 2", MAP.T)], WORDS)
    one, two = fig.data
    np.testing.assert_array_equal(one.z, MAP)
    np.testing.assert_array_equal(two.z, MAP.T)
    assert tuple(one.x) == tuple(one.y) == (0, 1, 2)
    assert fig.layout.yaxis.autorange == "reversed" and tuple(fig.layout.xaxis.ticktext) == tuple(WORDS)
    assert one.colorscale == go.Heatmap(colorscale="Cividis").colorscale
    assert (one.zmin, one.zmax) == (two.zmin, two.zmax) == (0, 0.7)
    assert fig.layout.yaxis2.ticktext == fig.layout.xaxis.ticktext  # for a pointer on the second map
    assert [a.text for a in fig.layout.annotations] == ["head 1", "head 2"]
    assert not fig.layout.yaxis2.showticklabels  # named once


def test_columns_do_not_overlap_and_fill_the_width():
    fig = figures.map_figure([(str(i), MAP) for i in range(5)], columns=3)
    names = ["xaxis", "xaxis2", "xaxis3"]
    edges = [e for n in names for e in fig.layout[n].domain]
    assert edges == sorted(edges) and edges[0] == 0 and edges[-1] == pytest.approx(1)
    assert fig.layout.yaxis.domain[1] == 1 and fig.layout.yaxis4.domain[0] == pytest.approx(0)
    assert fig.layout.yaxis.domain[0] > fig.layout.yaxis4.domain[1]


def test_a_difference_is_drawn_around_zero():
    trace = figures.map_figure([("d", MAP - 0.6)], difference=True).data[0]
    assert trace.zmin == -trace.zmax == pytest.approx(-0.6)
    assert trace.colorscale[1] == (0.5, "#f4f4f4")
    flat = figures.map_figure([("0", np.zeros((2, 2)))], difference=True).data[0]
    assert flat.zmin < 0 < flat.zmax


def test_masked_scores_stay_empty_and_do_not_set_the_scale():
    masked = np.where(np.tri(3, dtype=bool), MAP, -np.inf)
    trace = figures.map_figure([("causal", masked)]).data[0]
    assert np.isnan(trace.z[0][1]) and trace.zmax == 0.5
    assert "empty" in figures.map_figure([("none", np.full((2, 2), -np.inf))]).layout.meta["alt"]


def test_symmetry_stands_beside_the_map():
    fig = figures.map_figure([("a", MAP + MAP.T), ("b", MAP - MAP.T)], symmetry=True)
    assert "symmetry +1.00" in fig.layout.annotations[0].text and "symmetry -1.00" in fig.layout.annotations[1].text
    assert "symmetry +1.00" in fig.layout.meta["alt"]


@settings(deadline=None, max_examples=50)
@given(arrays(float, (4, 4), elements=st.floats(-10, 10, allow_subnormal=False).map(lambda v: round(v, 3))))
def test_symmetry_number_is_that_of_the_two_parts(a):
    even, odd = np.sum((a + a.T) ** 2), np.sum((a - a.T) ** 2)
    expected = (even - odd) / (even + odd) if even + odd else 1
    assert figures.symmetry_number(a) == pytest.approx(expected, abs=1e-12)


def test_a_mask_takes_pairs_out_of_the_symmetry():
    a = np.array([[1.0, -np.inf], [5.0, 2.0]])
    assert figures.symmetry_number(a) == 1


@pytest.mark.parametrize(
    ("maps", "labels", "says"),
    [([], None, "at least one"), ([("x", MAP)], ["a"], "'x' has shape"), ([("x", MAP[0])], None, "2-D")],
)
def test_maps_that_cannot_be_drawn_are_refused_by_name(maps, labels, says):
    with pytest.raises(ValueError, match=says):
        figures.map_figure(maps, labels)


def test_a_map_says_where_it_is_largest():
    alt = figures.map_figure([("head 1", MAP)], ["x", "y", "z"]).layout.meta["alt"]
    assert "head 1" in alt and "0.7" in alt and "y to z" in alt


def test_curves_wear_the_variants_colours_and_seeds_become_a_band():
    y = np.array([[3.0, 2.0, 1.5], [3.2, 2.4, 1.7], [3.1, 2.2, 1.6]])
    fig = figures.loss_figure([Curve("Q, K, V", [1, 2, 3], y, "qkv"), Curve("W_Q=I", [1, 2, 3], y[0], "identity-q")])
    band, mean, single = fig.data
    assert mean.line.color == variant("qkv").colour and mean.line.dash == variant("qkv").dash
    assert single.line.color == variant("identity-q").colour
    np.testing.assert_allclose(mean.y, y.mean(0))
    np.testing.assert_allclose(band.y, [3.2, 2.4, 1.7, 1.5, 2.0, 3.0])
    assert band.fillcolor == "rgba(127,127,127,0.18)" and not band.showlegend
    assert "Q, K, V ends at 1.6" in fig.layout.meta["alt"]


def test_a_diverged_run_ends_where_it_was_last_finite_in_a_cross():
    fig = figures.loss_figure([Curve("hot", [1, 2, 3], [2.0, 9.0, np.nan], colour="#123456", diverged=True)])
    line, cross = fig.data
    assert list(line.x) == [1, 2] and list(cross.x) == [2] and cross.marker.symbol == "x"
    assert "hot diverges at 2" in fig.layout.meta["alt"]


def test_a_curve_of_another_length_is_refused_by_name():
    with pytest.raises(ValueError, match="'odd': y has 2 points and x has 3"):
        figures.loss_figure([Curve("odd", [1, 2, 3], [1, 2])])
    assert not figures.loss_figure([Curve("gone", [1], [np.nan])]).data


def test_bars_start_at_zero():
    fig = figures.bar_figure(["a", "b"], [0.25, 0.75], y_title="weight")
    assert fig.layout.yaxis.rangemode == "tozero" and fig.layout.meta["alt"] == "weight: a 0.25, b 0.75."
    with pytest.raises(ValueError, match="2 names"):
        figures.bar_figure(["a", "b"], [1])


def test_every_figure_is_transparent_grey_and_without_latex():
    for fig in (
        figures.map_figure([("a", MAP)], WORDS, symmetry=True),
        figures.loss_figure([Curve("c", [1, 2], [2, 1])], log_y=True, log_x=True),
        figures.bar_figure(["a"], [1]),
        figures.style(go.Figure(go.Scatter(x=[0], y=[0])), 200, "one point"),
    ):
        assert fig.layout.paper_bgcolor == fig.layout.plot_bgcolor == "rgba(0,0,0,0)"
        assert fig.layout.font.color == figures.GREY and fig.layout.meta["alt"]
        assert "$" not in fig.to_json()


def test_show_carries_the_alternative_and_refuses_a_figure_without():
    fig = figures.map_figure([("a", MAP)])
    html = figures.show(fig, 'says "more"', "read it so").text
    assert 'aria-label="says &quot;more&quot;"' in html and "<figcaption>read it so</figcaption>" in html
    assert "largest value 0.7" in figures.show(fig).text
    with pytest.raises(ValueError, match="text alternative"):
        figures.show(go.Figure())


def test_settings_come_from_the_address_and_stay_within_bounds(monkeypatch):
    there = {"head": "5", "far": "99", "t": "0.5", "word": "tied", "odd": "x", "nan": "nan", "on": "1", "hide": "a, b"}
    monkeypatch.setattr(page, "address", lambda: there)
    assert page.number("head", 3, 0, 11) == 5 and isinstance(page.number("head", 3, 0, 11), int)
    assert page.number("far", 3, 0, 11) == 11 and page.number("t", 1.0, 0, 2) == 0.5
    assert page.number("odd", 3, 0, 11) == page.number("nan", 3, 0, 11) == page.number("none", 3, 0, 11) == 3
    assert page.choice("word", "own", ["own", "tied"]) == "tied" and page.choice("head", "own", ["own"]) == "own"
    assert page.switch("on", False) and page.switch("none", True) and not page.switch("odd", True)
    assert page.hidden("a") and page.hidden("b") and not page.hidden("c")
    html = page.controls(a="first", c="second").text
    assert "second" in html and "first" not in html
    assert "group" not in page.controls(a="first").text

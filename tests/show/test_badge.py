"""The badge is drawn from the definition: what the drawing shows is what the variant is."""

import xml.etree.ElementTree as ET

import pytest

from qkvlab.models.variants import VARIANTS, Variant, variant
from qkvlab.show.badge import FILL, badge_label, badge_svg, describe

SVG = "{http://www.w3.org/2000/svg}"
EVERY = (*VARIANTS, "qkv+gqa4", "qkv+mqa", "tie-kv+mqa", "identity-q+gqa2", "tie-qk+pos2d", "tie-qkv+pos2d")


def parse(svg):
    root = ET.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))
    boxes = [r for r in root.iter(f"{SVG}rect") if r.get("rx")]
    bars = [r for r in root.iter(f"{SVG}rect") if not r.get("rx")]
    letters = [t.text for t in root.iter(f"{SVG}text")]
    return root, boxes, bars, letters


@pytest.mark.parametrize("slug", EVERY)
def test_three_boxes_say_where_each_projection_comes_from(slug):
    v = variant(slug)
    root, boxes, bars, letters = parse(badge_svg(v))
    assert len(boxes) == 3
    for box, letter, name, source in zip(boxes, letters, "QKV", (v.query, v.key, v.value), strict=False):
        assert (box.get("fill") == "none") == (source == "identity") == (letter == "I")
        if source != "identity":
            assert letter == name and box.get("fill") == FILL["K" if source == "key" else name]
    assert len(bars) == (v.query == "key") + (v.value == "key")
    assert letters[3:] == ([] if v.kv_heads is None else [f"×{v.kv_heads}"])
    assert (root.find(f".//{SVG}circle") is not None) == v.pos2d


@pytest.mark.parametrize("slug", EVERY)
def test_it_fits_its_frame_and_speaks(slug):
    root, boxes, bars, _ = parse(badge_svg(slug, 20))
    _, _, width, height = map(float, root.get("viewBox").split())
    assert float(root.get("height")) == height == 20
    for shape in boxes + bars:
        assert float(shape.get("x")) >= 0 and float(shape.get("x")) + float(shape.get("width")) <= width
    assert root.get("role") == "img"
    assert root.get("aria-label") == root.find(f"{SVG}title").text == f"{variant(slug).label}: {describe(slug)}"


def test_no_two_variants_share_a_badge():
    assert len({badge_svg(slug) for slug in EVERY}) == len({describe(slug) for slug in EVERY}) == len(EVERY)


def test_words_for_the_design_example():
    assert describe("tie-kv+gqa4") == "Q learned, K learned, V tied to K, 4 shared key and value heads"
    assert describe(Variant(query="identity")) == "Q is the identity, K learned, V learned"


def test_the_label_sets_indices_low():
    assert "W<sub>Q</sub>=I" in badge_label("identity-q")


def test_an_unknown_slug_lists_what_is_allowed():
    with pytest.raises(ValueError, match="identity-q"):
        badge_svg("no-query")

"""The course's table of contents and the frame around each lab."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from qkvlab.course import labs
from qkvlab.show import page

ROOT = Path(__file__).parents[2]


class Words(HTMLParser):
    """What a reader sees, and which addresses are linked."""

    def __init__(self, html):
        super().__init__()
        self.text, self.links = "", []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.links.append(dict(attrs)["href"])

    def handle_data(self, data):
        self.text += data


def test_there_are_eighteen_labs_in_order_each_with_a_claim_of_one_sentence():
    assert [lab.number for lab in labs.LABS] == list(range(18))
    assert len({lab.slug for lab in labs.LABS}) == 18
    for lab in labs.LABS:
        assert lab.part in labs.PARTS and lab.minutes > 0 and lab.needs
        assert lab.question.endswith("?")
        assert lab.claim[-1] in ".?" and not re.search(r"[.?] [A-Z]", lab.claim), lab.claim
        assert "!" not in lab.claim + lab.question + "".join(lab.goals)
        assert not lab.written or lab.number == 0 or len(lab.goals) >= 3


def test_written_means_that_the_notebook_is_there():
    there = {path.stem for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.py")}
    assert there == {lab.stem for lab in labs.LABS if lab.written}


def test_a_lab_is_found_by_slug_or_stem_and_else_the_error_lists_them():
    assert labs.find("change_of_basis") is labs.find("02_change_of_basis") is labs.LABS[2]
    with pytest.raises(ValueError, match=r"'changes'.*start_here, three_projections"):
        labs.find("changes")


def test_header_says_title_claim_minutes_needs_and_goals():
    lab = labs.find("three_projections")
    words = Words(labs.header(lab.slug).text).text
    for said in (lab.title, f"{lab.minutes} minutes", lab.needs, *lab.goals):
        assert said in words
    assert "only through" in words
    assert 'class="q">W<sub>Q</sub>' in labs.header(lab.slug).text


def test_links_stay_in_the_folder_of_the_open_page(monkeypatch):
    assert labs.link("change_of_basis") == "?file=02_change_of_basis.py"
    assert labs.link("change_of_basis", kappa=3) == "?file=02_change_of_basis.py&kappa=3"
    monkeypatch.setattr(page, "address", lambda: {"file": "notebooks/00_start_here.py"})
    assert labs.link("change_of_basis") == "?file=notebooks/02_change_of_basis.py"


def test_the_foot_links_what_is_written_and_only_names_what_is_not():
    between = Words(labs.footer("three_projections").text)
    assert between.links == ["?file=00_start_here.py", "?file=02_change_of_basis.py"]
    ahead = Words(labs.footer("change_of_basis").text)
    assert "03 Gauge freedom" in ahead.text and "coming" in ahead.text
    assert ahead.links == ["?file=01_three_projections.py", "?file=08_train_without_queries.py"]
    assert Words(labs.footer("start_here").text).links == ["?file=01_three_projections.py"]
    assert Words(labs.footer("playground").text).links == ["?file=08_train_without_queries.py"]
    last = labs.footer("train_without_queries").text  # nothing after it is written: its next lab is named once
    assert last.count("09 Weight decay") == 1 and "open now" not in last.partition("Next")[2]


def test_the_map_of_the_course_names_every_lab_and_links_the_written_ones():
    seen = Words(labs.course_map().text)
    for lab in labs.LABS[1:]:
        assert lab.title in seen.text
    assert seen.links == [f"?file={lab.stem}.py" for lab in labs.LABS[1:] if lab.written]


def test_prose_knows_matrices_terms_and_labs():
    html = labs.prose(r"$\WQ\WK^\top$, [[softmax]], [[head|heads]] and ((change_of_basis)), ((vision|lab 13))").text
    assert r"\textcolor{#0072B2}{W_Q}" in html and r"\textcolor{#E69F00}{W_K}" in html
    seen = Words(html)
    assert seen.links == ["?file=02_change_of_basis.py"]
    assert labs.GLOSSARY["softmax"] in seen.text and "heads" in seen.text and "lab 13" in seen.text
    with pytest.raises(ValueError, match=r"'sofmax' is not in the glossary.*softmax"):
        labs.prose("[[sofmax]]")


def test_a_term_explains_itself_to_a_keyboard_and_to_a_screen_reader():
    html = labs.term("gauge")
    assert 'tabindex="0"' in html and f'aria-label="gauge: {labs.GLOSSARY["gauge"]}"' in html


def test_verdicts_are_words():
    assert "exact up to rounding" in labs.state("exact")
    assert "holds within seed noise" in labs.number("0.01", "nats", "within noise")
    with pytest.raises(ValueError, match="allowed are exact, within noise, fails"):
        labs.state("maybe")


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a, b):
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_every_ink_is_readable_on_its_ground_in_light_and_in_dark():
    """WCAG 2 asks for 4.5 to 1 for text."""
    css = (ROOT / "notebooks" / "lab.css").read_text(encoding="utf-8")
    for selector, grounds in ((":root", ("#ffffff", "#f4f6f8")), (".dark", ("#181c1a", "#22272c"))):
        block = re.search(rf"^{re.escape(selector)} \{{(.*?)^\}}", css, re.S | re.M)[1]
        inks = dict(re.findall(r"--lab-([\w-]*(?:ink|text|soft|accent)): (#[0-9a-f]{6});", block))
        assert len(inks) == 8
        for name, ink in inks.items():
            assert min(contrast(ink, ground) for ground in grounds) >= 4.5, (selector, name)


def test_the_style_sheet_fetches_nothing_and_has_the_course_colours():
    css = (ROOT / "notebooks" / "lab.css").read_text(encoding="utf-8")
    assert "url(" not in css and "@import" not in css
    assert css.count("{") == css.count("}")
    for name, colour in labs.COLOURS.items():
        assert f"--lab-{name.lower()}: {colour.lower()};" in css

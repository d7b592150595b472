"""The first minute of a reader: the gallery, a lab, a slider, the number that follows it."""

import re

from playwright.sync_api import expect

from qkvlab.cli.serve import lab_files, labs_dir
from qkvlab.course.labs import find


def test_the_gallery_shows_the_labs_and_nothing_else(open_page):
    page = open_page()
    labs = [find(path.stem) for path in lab_files(labs_dir())]
    cards = page.locator("a[href*='file=']")
    expect(cards).to_have_count(len(labs))
    for card, lab in zip(cards.all(), labs, strict=True):
        expect(card).to_contain_text(f"{lab.number:02d} {lab.title}")
        expect(card).to_contain_text(lab.question)
        assert re.search(rf"file={lab.stem}\.py", card.get_attribute("href")), "a relative link, which can be shared"


def test_from_the_gallery_to_a_lab_and_its_slider(open_page):
    page = open_page()
    with page.expect_popup() as opened:
        page.locator("a", has_text="A change of basis").first.click()
    lab = opened.value
    expect(lab.get_by_role("heading", level=1)).to_contain_text("change of basis")
    expect(lab.locator(".katex").first).to_be_visible()
    number = lab.locator(".proof-line b").first
    expect(number).to_be_visible()
    before = number.inner_text()
    slider = lab.get_by_role("slider", name="condition number of a random")
    slider.focus()
    slider.press("ArrowRight")
    expect(number).not_to_have_text(before)


def test_a_figure_is_drawn_when_it_comes_near(open_page):
    page = open_page("/?file=01_three_projections.py")
    expect(page.locator(".lab-foot")).to_be_visible()
    figures = page.locator(".lab-figure")
    expect(figures.first.locator(".heatmaplayer image").first).to_be_attached()
    expect(figures.last.locator(".main-svg")).to_have_count(0)
    figures.last.scroll_into_view_if_needed()
    expect(figures.last.locator(".heatmaplayer image").first).to_be_visible()


def test_every_lab_opens_in_a_narrow_dark_window(open_page):
    """With its title, without an error, and without scrolling sideways."""
    for path in lab_files(labs_dir()):
        page = open_page(f"/?file={path.name}", width=400, scheme="dark")
        expect(page.get_by_role("heading", level=1).first).to_contain_text(find(path.stem).title)
        expect(page.locator(".lab-foot")).to_be_visible()  # the last cell
        expect(page.locator(".marimo-error, [data-testid=marimo-error]")).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 1, path.name
        page.close()

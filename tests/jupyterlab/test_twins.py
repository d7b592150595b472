"""What a student does in JupyterLab: run all cells, move a control, answer, edit a cell, come back to the page, train.

Every twin with QKVLAB_ALL_TWINS=1, as in `.ci/run`; without it two of them.
"""

import os
import re

import pytest
from playwright.sync_api import expect

from bench import lab

MOVES = {  # twin -> label of a slider, words beside a number that follows it
    "00_start_here": ("temperature", ""),
    "01_three_projections": ("layer", "largest difference to the model"),
    "02_change_of_basis": ("condition number of a random", "how far the input moved"),
    "08_train_without_queries": ("width d", "the logit scale that makes both start alike"),
}
PYTEST = ("02_change_of_basis", "08_train_without_queries")

ERRORS = """() => jupyterapp.shell.currentWidget.content.widgets.flatMap((cell) => cell.model.outputs?.toJSON() ?? [])
  .filter((output) => output.output_type === 'error' || output.name === 'stderr')"""


def run(page):
    """Run all cells; nothing failed, and nothing waits."""
    lab.run_all(page)
    assert page.evaluate(ERRORS) == []
    expect(page.locator(".twin-error")).to_have_count(0)
    expect(page.locator(".twin-note", has_text=re.compile("Waits for|Not run"))).to_have_count(0)


def slider(page, label):
    return page.locator(".twin-slider", has_text=label).first.locator(".noUi-handle")


def number(page, words):
    return page.locator(".qkv-twin .big-number, .qkv-twin .proof-line", has_text=words).locator("b")


def test_every_twin_is_tried():
    assert set(MOVES) == {path.stem for path in lab.TWINS.glob("*.ipynb")}


@pytest.mark.parametrize("name", MOVES if os.environ.get("QKVLAB_ALL_TWINS") else PYTEST)
def test_run_all_and_move_a_slider(open_twin, name):
    label, words = MOVES[name]
    page = open_twin(name)
    run(page)
    if words:
        follows, before = number(page, words), number(page, words).text_content()
        slider(page, label).press("ArrowRight")
        expect(follows).not_to_have_text(before)
        slider(page, label).press("ArrowLeft")
        expect(follows).to_have_text(before)
    else:  # a figure that says its numbers in words
        figure = page.locator("[role=img][aria-label^='At temperature']")
        expect(figure).to_have_attribute(
            "aria-label", re.compile(r"temperature 1 the largest of five weights is 0\.\d\d")
        )
        slider(page, label).press("ArrowRight")
        expect(figure).to_have_attribute("aria-label", re.compile(r"temperature 1\.1 the largest of five weights"))
    assert page.evaluate(ERRORS) == []


def test_run_twice_then_exercise_edited_cell_and_reload(open_twin):
    page = open_twin("02_change_of_basis")
    run(page)
    run(page)
    views = page.locator(".qkv-twin").count()

    exercise = page.locator(".exercise", has_text="Which side?")
    hint = exercise.locator("details").first
    hint.locator("summary").first.click()
    for answer, word, message in (
        ("W_K @ inv(Theta)", "Not yet.", "The inverse is on the far side"),
        ("inv(Theta) @ W_K", "Right.", "The two changes meet in the middle"),
    ):
        exercise.locator("input").fill(answer)
        exercise.locator("input").press("Enter")
        expect(page.locator(".verdict", has_text=message)).to_contain_text(word)
    expect(page.get_by_text("The inverse is on the far side")).to_have_count(0)
    expect(hint).to_have_attribute("open", "")  # as the reader left it

    moved = number(page, "how far the input moved")
    before = moved.text_content()
    cell = page.locator(".jp-CodeCell", has_text="default_rng(7)")
    cell.locator(".cm-content").click()
    source = page.evaluate("jupyterapp.shell.currentWidget.content.activeCell.model.sharedModel.source")
    page.keyboard.press("ControlOrMeta+A")
    page.keyboard.insert_text(source.replace("default_rng(7)", "default_rng(8)"))
    page.keyboard.press("Shift+Enter")
    expect(moved).not_to_have_text(before)
    expect(page.locator(".qkv-twin")).to_have_count(views)  # in place
    assert page.evaluate(ERRORS) == []

    handle, before = slider(page, "condition number of a random"), moved.text_content()
    handle.press("ArrowRight")
    expect(moved).not_to_have_text(before)
    now = moved.text_content()
    page.keyboard.press("ControlOrMeta+S")
    page.wait_for_function("!jupyterapp.shell.currentWidget.context.model.dirty")
    page.reload()
    lab.ready(page)
    expect(moved).to_have_text(now)
    handle.press("ArrowRight")
    expect(moved).not_to_have_text(now)
    expect(page.locator(".exercise input[type=text]").first).to_have_value("inv(Theta) @ W_K")


def test_train_pause_resume_and_stop(open_twin):
    page = open_twin("08_train_without_queries", height=2000)
    run(page)
    panel = page.locator(".qkv-panel")
    says = lambda word: expect(panel.locator(".word")).to_have_text(word)
    press = lambda command: panel.locator(f"[data-command={command}]").click()
    step = lambda: int(re.match(r"(\d+) /", panel.locator(".meter").text_content())[1])
    chart = panel.locator("canvas[tabindex]")
    says("Ready")
    press("play")
    says("Training")
    expect(chart).to_have_attribute("aria-label", re.compile("after [1-9]"))
    expect(page.locator(".qkv-grid canvas[tabindex]")).to_have_count(2)  # the maps of both models
    press("pause")
    says("Paused")
    paused, drawn = step(), chart.get_attribute("aria-label")
    assert paused > 0
    press("play")
    says("Training")
    expect(chart).not_to_have_attribute("aria-label", drawn)
    expect(panel.locator(".meter")).not_to_contain_text(re.compile(f"^{paused} /"))
    press("stop")
    says("Stopped")
    assert step() > paused
    assert page.evaluate(ERRORS) == []

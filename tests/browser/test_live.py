"""Training from the page: every button, another control meanwhile, a reload, the keyboard, two sizes of window."""

import re

from playwright.sync_api import expect

LAB = "/?file=08_train_without_queries.py&width=32&steps={steps}&prompt=To+be"


class Panel:
    def __init__(self, page):
        self.page, self.root = page, page.locator(".qkv-panel")

    def says(self, word):
        expect(self.root.locator(".word")).to_have_text(word)

    def press(self, command):
        self.root.locator(f"[data-command={command}]").click()

    def step(self):
        return int(re.match(r"(\d+) /", self.root.locator(".meter").inner_text())[1])


def test_train_pause_step_resume_stop_reload_and_take_up(open_page):
    page = open_page(LAB.format(steps=20_000), height=3000)  # more than any machine trains during this test
    panel = Panel(page)
    panel.says("Ready")
    expect(page.locator(".lab-foot")).to_be_visible()  # the page is whole; nothing runs but the training
    panel.press("play")
    panel.says("Training")
    slider, number = page.get_by_role("slider").first, page.locator(".big-number span").first
    before = number.inner_text()
    slider.focus()
    slider.press("ArrowRight")
    expect(number).not_to_have_text(before)  # a slider answers while models train
    panel.says("Training")
    panel.press("pause")
    panel.says("Paused")
    at = panel.step()
    assert at > 0
    expect(page.locator(".continued figcaption").first).to_have_text(re.compile(f"after {at} steps"))
    panel.press("step")
    expect(page.locator(".continued figcaption").first).to_have_text(re.compile(f"after {at + 1} steps"))
    panel.press("play")
    panel.says("Training")
    panel.press("stop")
    panel.says("Stopped")
    stopped = panel.step()
    assert stopped > at
    page.reload()
    panel.says("Saved run")
    expect(panel.root.locator(".meter")).to_have_text(f"{stopped} / 20000 steps")
    expect(page.locator(".qkv-grid canvas[tabindex]")).to_have_count(2)  # with the maps it had
    expect(panel.root.locator("tbody tr")).to_have_count(2)
    panel.press("play")
    panel.says("Training")
    expect(panel.root.locator(".meter")).to_contain_text("steps/s")
    panel.press("stop")
    panel.says("Stopped")
    assert panel.step() > stopped
    panel.press("reset")
    panel.says("Ready")
    page.reload()
    panel.says("Ready")  # what was thrown away does not come back


def test_by_keyboard_in_a_narrow_dark_window(open_page):
    page = open_page(LAB.format(steps=10), width=400, height=1200, scheme="dark")
    panel = Panel(page)
    panel.says("Ready")
    expect(page.locator(".lab-foot")).to_be_visible()  # the page is whole, and nothing takes the focus away
    panel.root.locator("[data-command=play]").focus()
    page.keyboard.press("Enter")
    panel.says("Done")
    expect(panel.root.locator(".meter")).to_have_text("10 / 10 steps")
    expect(panel.root.locator(".finding")).to_contain_text("Validation loss after 10 steps")
    panel.press("pin")
    expect(panel.root.locator("tr.old")).to_have_count(2)
    chart = panel.root.locator("canvas[tabindex]")
    expect(chart).to_have_attribute("aria-label", re.compile("after 10 of 10 steps: Q, K, V"))
    chart.focus()
    page.keyboard.press("Home")
    expect(panel.root.locator("[aria-live=polite].hidden")).to_contain_text("step 1.")
    page.keyboard.press("End")
    expect(panel.root.locator("[aria-live=polite].hidden")).to_contain_text("step 10.")

    grid = page.locator(".qkv-grid")
    maps = grid.locator("canvas[tabindex]").first
    expect(maps).to_have_attribute("aria-label", re.compile("4 layers of 4 heads, 5 tokens"))
    maps.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    expect(grid.locator(".readout")).to_contain_text("Layer 2, head 2")
    page.set_viewport_size({"width": 410, "height": 1200})  # drawn anew, as with every frame of a training
    page.wait_for_timeout(300)
    expect(grid.locator(".readout")).to_contain_text("Layer 2, head 2")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    expect(grid.locator(".readout")).to_contain_text(re.compile("query “e” .* reads key “T”.*difference"))
    page.keyboard.press("Escape")
    grid.locator("[data-command=difference]").click()
    expect(grid.locator("canvas[tabindex]")).to_have_count(1)
    assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 1


def test_settings_that_cannot_be_and_a_link_that_hides(open_page):
    page = open_page("/?file=08_train_without_queries.py&width=30&heads=4&hide=steps,scale&recipe=fast")
    expect(page.get_by_text("Nothing is lost")).to_be_visible()
    expect(page.get_by_text("width=30")).to_be_visible()
    expect(page.get_by_text("hides what this lab asks")).to_be_visible()
    expect(page.get_by_text("seeds", exact=True)).to_be_visible()
    expect(page.get_by_text("steps", exact=True)).to_have_count(0)

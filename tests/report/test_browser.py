"""A real browser shows the page: without an error, with all marks, readable in light and in dark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from lakemirror.report import records
from lakemirror.report.page import page
from tests.report import histories

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SCHEMES = ["light", pytest.param("dark", marks=pytest.mark.thorough)]

pytestmark = [
    pytest.mark.sources,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium"),
    pytest.mark.guarantee(
        "A report shows what the audit contains, makes no network requests, and runs no code hidden in a name"
    ),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    histories.shop(folder / "state")
    made = folder / "report.html"
    made.write_text(page(histories.HOSTILE, "/state", records.read(str(folder / "state")), datetime.now(UTC)))
    return made


def shown(browser: Browser, file: Path, scheme: str) -> tuple[Page, list[str], list[str]]:
    """The page, what went to the console and which requests were made."""
    opened = browser.new_page(color_scheme=scheme)  # type: ignore[arg-type]
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.goto(file.as_uri())
    opened.wait_for_load_state("networkidle")
    return opened, said, asked


@pytest.mark.parametrize("scheme", SCHEMES)
def test_it_shows_all_marks_and_no_error(browser: Browser, file: Path, scheme: str) -> None:
    opened, said, asked = shown(browser, file, scheme)
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    assert opened.evaluate("window.hit") is None
    assert opened.title() == f"{histories.HOSTILE}: Lakemirror report"

    def marks(section: str, kind: str) -> int:
        return opened.locator(f"#{section} svg [aria-roledescription='{kind}']").count()

    assert marks("records", "bar") == 4
    assert marks("records", "point") == 3  # one batch has no time of its own
    assert marks("seconds", "point") == 4
    assert marks("changes", "bar") == 4
    assert marks("drift", "point") == 2
    assert marks("quarantine", "bar") == 3
    assert marks("tombstones", "point") == 2
    for number in range(opened.locator("svg").count()):
        box = opened.locator("svg").nth(number).bounding_box()
        assert box is not None
        assert box["width"] > 300
        assert opened.locator("svg").nth(number).locator("title").first.inner_html()
    opened.close()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_texts_and_marks_stand_out_from_the_ground(browser: Browser, file: Path, scheme: str) -> None:
    """By the ratio of WCAG 2.2: 4.5 for text (1.4.3), 3 for marks (1.4.11)."""
    opened, _, _ = shown(browser, file, scheme)
    ground = luminance(opened.evaluate("getComputedStyle(document.body).backgroundColor"))
    assert (ground > 0.5) == (scheme == "light")
    colours = "(found, name) => [...new Set(found.map(each => getComputedStyle(each)[name]))]"
    texts = opened.locator("p, h2, dt, summary").evaluate_all(colours, "color")
    texts += opened.locator("svg text").evaluate_all(colours, "fill")
    marks = opened.locator("svg [aria-roledescription='bar']").evaluate_all(colours, "fill")
    marks += opened.locator("svg [aria-roledescription='point']").evaluate_all(colours, "fill")
    assert len(marks) > 3
    assert min(contrast(luminance(each), ground) for each in texts) >= 4.5, texts
    assert min(contrast(luminance(each), ground) for each in marks) >= 3, marks
    opened.close()


def luminance(colour: str) -> float:
    """Relative luminance of `rgb(r, g, b)`, as WCAG defines it."""
    parts = [float(part) / 255 for part in colour.removeprefix("rgb(").removesuffix(")").split(",")]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: float, other: float) -> float:
    return (max(one, other) + 0.05) / (min(one, other) + 0.05)

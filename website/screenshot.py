"""Takes a picture of the beginning of a page with Chromium: ``python -m website.screenshot HTML PNG``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1240, 780


def take(page: Path, picture: Path) -> None:
    """Write what a window of this size shows of the page, in the light scheme."""
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise SystemExit("there is no chromium: scripts/test-tools chromium installs it")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        shown.goto(page.resolve().as_uri())
        shown.wait_for_load_state("networkidle")
        picture.parent.mkdir(parents=True, exist_ok=True)
        shown.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), Path(sys.argv[2]))

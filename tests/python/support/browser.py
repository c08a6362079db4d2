"""A real Chromium without a window, for tests of pages."""

import contextlib
import os
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright

UNPACKED = Path(__file__).parents[3] / ".deps/browser/usr/lib"


def _executable():
    """The system's, or the one that ``scripts/setup test`` unpacks, and the variables that it needs."""
    for name in ("chromium-headless-shell", "chromium", "google-chrome"):
        if found := shutil.which(name):
            return found, {}
    unpacked = UNPACKED / "chromium/chromium-headless-shell"
    assert unpacked.exists(), "no Chromium: scripts/setup test unpacks one"
    folders = {str(library.parent) for library in UNPACKED.rglob("*.so*") if "chromium" not in library.parts}
    return str(unpacked), {"LD_LIBRARY_PATH": ":".join(sorted(folders))}


@contextlib.contextmanager
def browser():
    """Yields Playwright's browser."""
    executable, variables = _executable()
    # Chromium refuses to make a sandbox for root, which is who runs tests in a container.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=executable, env=os.environ | variables, args=arguments)
        try:
            yield opened
        finally:
            opened.close()


@contextlib.contextmanager
def opened_page(browser, path, width=1280, height=900, **context):
    """Yields a page of a file and the list of what went wrong on it, offline."""
    with browser.new_context(viewport={"width": width, "height": height}, offline=True, **context) as opened:
        page = opened.new_page()
        troubles = []
        page.on(
            "console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("requestfailed", lambda request: troubles.append(f"asked for {request.url}"))
        page.goto(Path(path).as_uri())
        yield page, troubles

"""The site that `make docs` makes holds together, and works in a real browser without a network."""

from html.parser import HTMLParser
from urllib.parse import unquote, urlparse

import pytest

from support.browser import browser, opened_page
from support.pages import ROOT

SITE = ROOT / "build/docs"
# Doxygen's pages are thousands, and it looks after their links itself.
PAGES = sorted(page for page in SITE.rglob("*.html") if "cpp" not in page.relative_to(SITE).parts)


class Links(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.targets, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.anchors |= {values.get("id"), values.get("name")}
        self.targets += [values[name] for name in ("href", "src") if values.get(name)]


@pytest.fixture(scope="module")
def opened():
    with browser() as opened:
        yield opened


def test_the_site_was_made():
    assert len(PAGES) > 20, "make docs makes it"
    assert (SITE / "cpp/index.html").is_file()


def test_links_lead_somewhere():
    links = {page: Links(page.read_text()) for page in PAGES}
    for page, found in links.items():
        for target in found.targets:
            parts = urlparse(target)
            if parts.scheme:
                continue
            file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            assert file.is_file(), f"{page.relative_to(SITE)}: {target}"
            if parts.fragment and file in links:
                assert unquote(parts.fragment) in links[file].anchors, f"{page.relative_to(SITE)}: {target}"


@pytest.mark.parametrize("width", [1280, 400])
def test_the_first_page_leads_to_all_parts(opened, width):
    with opened_page(opened, SITE / "index.html", width=width) as (page, troubles):
        assert page.locator("h1").first.inner_text().startswith("fairshard")
        for target in ("quickstart.html", "sharding.html", "autoapi/fairshard/index.html", "cpp/index.html"):
            assert page.locator(f"a[href='{target}']").count(), target
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert not troubles


@pytest.mark.parametrize(("words", "found"), [("overlap_gather", "sharding.html"), ("OSS", "autoapi")])
def test_search_finds_pages_and_names(opened, words, found):
    with opened_page(opened, SITE / "search.html") as (page, troubles):
        page.goto(f"{(SITE / 'search.html').as_uri()}?q={words}")
        page.locator(f"#search-results a[href*='{found}']").first.wait_for(timeout=20000)
        assert not troubles

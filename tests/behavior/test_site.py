"""The documentation builds as a site, which works in a browser."""

import functools
import http.server
import os
import subprocess
import threading
from pathlib import Path

import pytest

from tests.support.browser import Browser, find_chromium

ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / ".venv-docs" / "bin" / "mkdocs"  # made by `make test`


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the built site."""
    if not MKDOCS.exists():
        pytest.skip("without mkdocs: `make docs` installs it")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [str(MKDOCS), "build", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site):
    """The address of a server for the site."""
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def browser(tmp_path):
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("Chromium is not installed")
    browser = Browser(chromium, tmp_path / "profile")
    yield browser
    browser.close()


def test_the_reference_has_every_public_name(site):
    page = (site / "reference.html").read_text(encoding="utf-8")
    names = ("compile", "explain", "explain_recompiles", "bisect", "FusionDefinition", "fuse")
    assert [name for name in names if f'id="tofuse.{name}"' not in page] == []
    assert "Raises TypeError if the target is no function" in page


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_window_without_errors(address, browser, width):
    for page in ("index", "tutorials/first-steps", "reference", "command-line"):
        browser.open(f"{address}/{page}.html", width, 800)
        assert browser.run("document.querySelector('h1').innerText")
        assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.errors == []


def test_search_finds_a_page(address, browser):
    browser.open(f"{address}/index.html", 1280, 800)
    browser.run("document.querySelector('.md-search__input').focus()")
    browser.type("recompilations")
    found = browser.wait("document.querySelectorAll('.md-search-result__item').length")
    assert found > 0
    titles = browser.run("document.querySelector('.md-search-result__list').innerText")
    assert "Recompilations and graph breaks" in titles
    assert browser.errors == []

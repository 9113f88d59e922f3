"""The HTML page of a report: its data, and its behaviour in a browser."""

import json
import re

import pytest
import torch

import tofuse
from tests.support.browser import Browser, find_chromium
from tests.support.sample_reports import measured_block
from tofuse.report.html import page_text
from tofuse.report.model import Report

CHROMIUM = find_chromium()
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine's PATH")


def page_data(text: str):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_page_is_self_contained():
    text = page_text(measured_block())
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", text)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\s*\(", text)


def test_page_data_is_complete_and_consistent():
    report = measured_block()
    data = page_data(page_text(report))
    assert data["name"] == "block" and len(data["graphs"]) == len(report.graphs)
    for g, graph in zip(data["graphs"], report.graphs, strict=True):
        assert [r["name"] for r in g["regions"]] == [r.name for r in graph.regions]
        assert len(g["edges"]) == len(graph.verdicts)
        for e in g["edges"]:
            assert 0 <= e["source"] < e["target"] < len(g["ops"])
            assert e["fused"] or any(e["title"] == r["title"] for r in g["rules"])
        for k, r in enumerate(g["regions"]):
            assert r["ops"] and all(g["ops"][o]["region"] == k for o in r["ops"])
            if r["kind"] == "kernel":
                assert "define" in g["texts"][r["source"]] and "nest" in g["texts"][r["loops"]]
        assert sorted(k for r in g["rules"] for k in r["edges"]) == [
            k for k, e in enumerate(g["edges"]) if not e["fused"]
        ]


def test_verdicts_without_an_edge_are_shown():
    def f(x):
        a, b, c = x.split([8, 8, 8], 1)
        return torch.cat([a.sin() * 2, b.sin() * 2, c.cos() * 2], 1).amax(1)

    (graph,) = page_data(page_text(tofuse.explain(f)(torch.randn(4, 24))))["graphs"]
    (rule,) = (r for r in graph["rules"] if r["title"] == "Branches that nearly match")
    (other,) = rule["other_verdicts"]
    assert other["rule"].startswith("branch[2]: not batched: op cos")
    assert "torch.cat" in graph["lines"][other["line"]]["code"]


def test_no_launch_exceeds_the_arithmetic_limit():
    data = page_data(page_text(measured_block()))
    regions = [r for g in data["graphs"] for r in g["regions"] if r["measured_us"]]
    best = max(1e6 * r["work"] / r["measured_us"] for r in regions)
    assert data["limits"]["arithmetic"] >= best


def test_script_end_tags_in_user_code_are_escaped():
    def f(x):
        return x.sin() + len("</script><script>alert(1)</script>")

    text = page_text(tofuse.explain(f)(torch.randn(3)))
    assert "</script><script>alert" not in text
    assert any("</script>" in x["code"] for x in page_data(text)["graphs"][0]["lines"])


def test_reports_without_a_program_have_a_page():
    assert page_data(page_text(Report()))["graphs"] == []
    view = tofuse.explain(lambda x: x.view(-1))(torch.randn(2, 2))
    assert "No kernel was generated" in page_text(view)


# -- in a browser --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    assert CHROMIUM is not None
    made = Browser(CHROMIUM, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> str:
    return measured_block().save_html(tmp_path_factory.mktemp("page") / "report.html").as_uri()


@pytest.fixture
def tab(browser, page):
    browser.errors.clear()
    browser.open(page, 1280, 900)
    yield browser
    assert browser.errors == []


def panel(browser):
    return browser.run("document.getElementById('panel').innerText")


def edge_number(browser, fused: bool):
    return browser.run(
        "JSON.parse(document.getElementById('data').textContent).graphs[0].edges"
        f".findIndex((e) => e.fused === {str(fused).lower()})"
    )


@needs_browser
def test_clicking_an_item_shows_its_details(tab):
    assert "How to read it" in panel(tab)
    tab.click(".op")
    assert "Operation" in panel(tab) and "Runs in" in panel(tab)
    assert "h = F.gelu(x @ w + b)" in panel(tab)
    assert "Its launch, measured" in panel(tab)
    tab.click(".port")
    assert "Input" in panel(tab) and "Read by" in panel(tab)
    tab.click(".edge.cut circle")
    text = panel(tab)
    assert "Not fused" in text and "One side is a library call" in text
    assert "What you can do" in text and "sample_reports.py" in text
    tab.click(".region.kernel > rect")
    tab.run("document.querySelectorAll('#table button')[1].click()")
    text = panel(tab)
    assert "Kernel" in text and "Measured" in text and "Loops" in text
    tab.click("#panel details summary")
    assert "nest softmax_add" in tab.run("document.querySelector('#panel details pre').innerText")


@needs_browser
def test_rule_links_select_the_edge(tab):
    tab.click("#rules .links button")
    assert "Not fused" in panel(tab)
    assert tab.run("document.querySelectorAll('.edge.on').length") >= 1
    assert re.search(r"#0\.edge\.\d+$", tab.run("location.href"))


@needs_browser
def test_address_fragment_selects_an_item(tab, page):
    number = edge_number(tab, fused=True)
    tab.open(f"{page}#0.edge.{number}", 1280, 900)
    assert "Fused" in panel(tab) and "Memory traffic saved" in panel(tab)
    tab.open(f"{page}#7.edge.99999", 1280, 900)
    assert "How to read it" in panel(tab)


@needs_browser
def test_search_finds_ops_lines_regions_edges_and_inputs(tab):
    tab.press("/")
    assert tab.run("document.activeElement.id") == "query"
    for words, kind, shown in (
        ("erf", "op", "Operation"),
        ("layer_norm", "line", "Line of your code"),
        ("softmax_add", "kernel", "Kernel"),
        ("library call mm", "not fused", "Not fused"),
        ("primals_2", "input", "Input"),
    ):
        tab.run("document.getElementById('query').value = ''")
        tab.run("document.getElementById('query').focus()")
        tab.type(words)
        kinds = tab.run("[...document.querySelectorAll('#hits .what')].map((n) => n.innerText)")
        assert kind in kinds, (words, kinds)
        for _ in range(kinds.index(kind)):
            tab.press("ArrowDown")
        tab.press("Enter")
        assert shown in panel(tab)
        assert tab.run("document.getElementById('hits').hidden")
    tab.type("no such thing")
    assert "No matches" in tab.run("document.getElementById('hits').innerText")


@needs_browser
def test_arrow_keys_follow_values(tab):
    tab.run("document.getElementById('graph').focus()")
    tab.press("ArrowDown")
    first = panel(tab)
    tab.press("ArrowDown")
    second = panel(tab)
    tab.press("ArrowUp")
    assert first != second and panel(tab) == first
    tab.press("Escape")
    assert "How to read it" in panel(tab)


@needs_browser
def test_tabs_switch_graphs(tab):
    tab.click("#tab-1")
    assert tab.run("document.getElementById('tab-1').getAttribute('aria-selected')") == "true"
    names = tab.run("[...document.querySelectorAll('#table td button')].map((n) => n.innerText)")
    assert names == [r.name for r in measured_block().backward.regions]


@needs_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_page_fits_the_window(browser, page, width: int, dark: bool):
    browser.errors.clear()
    browser.open(page, width, 844, dark)
    assert browser.run("document.documentElement.scrollWidth") <= width
    assert browser.run("document.documentElement.clientWidth") <= width
    paper = browser.run("getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") is not dark
    for selector in ("#memory-chart svg", "#roofline-chart svg", "#graph .op", "#table td"):
        assert browser.run(f"document.querySelectorAll('{selector}').length") > 0, selector
    browser.run("document.getElementById('query').focus()")
    browser.type("a")
    assert browser.run("document.getElementById('hits').getBoundingClientRect().right") <= width
    hits = "document.getElementById('hits')"
    assert browser.run(f"{hits}.scrollWidth <= {hits}.clientWidth")
    browser.press("Escape")
    smallest = browser.run(
        "Math.min(...[...document.querySelectorAll('main p, main td, main h2, #panel p')]"
        ".filter((n) => n.innerText).map((n) => parseFloat(getComputedStyle(n).fontSize)))"
    )
    assert smallest >= 12
    browser.click("#rules .links button")
    assert browser.run("document.documentElement.scrollWidth") <= width
    if width == 390:  # on a phone, the panel covers the foot of the page and can be closed
        assert browser.run("getComputedStyle(document.getElementById('panel')).position") == "fixed"
        browser.click("#panel .close")
        assert not browser.run("document.getElementById('panel').classList.contains('open')")
    assert browser.errors == []


@needs_browser
def test_large_program_is_drawn(browser, tmp_path):
    def f(x):
        for _ in range(400):
            x = (x @ x).sin().exp()
        return x

    report = tofuse.explain(f)(torch.randn(4, 4))
    browser.errors.clear()
    browser.open(report.save_html(tmp_path / "large.html").as_uri(), 1280, 900)
    assert browser.run("document.querySelectorAll('#graph .op').length") == 1200
    browser.click("#zoom-fit")
    assert browser.errors == []

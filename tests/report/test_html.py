"""The page: it needs nothing beside itself, and does in a browser what it says."""

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
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine's PATH")


def data_of(text: str):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found
    return json.loads(found[1])


def test_the_page_needs_nothing_beside_itself():
    text = page_text(measured_block())
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", text)
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\s*\(", text)


def test_the_data_is_whole_and_refers_to_itself_rightly():
    report = measured_block()
    data = data_of(page_text(report))
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


def test_what_keeps_branches_apart_is_told_though_it_is_no_edge():
    def f(x):
        a, b, c = x.split([8, 8, 8], 1)
        return torch.cat([a.sin() * 2, b.sin() * 2, c.cos() * 2], 1).amax(1)

    (graph,) = data_of(page_text(tofuse.explain(f)(torch.randn(4, 24))))["graphs"]
    (rule,) = (r for r in graph["rules"] if r["title"] == "Branches that nearly match")
    (other,) = rule["other_verdicts"]
    assert other["rule"].startswith("branch[2]: not batched: op cos")
    assert "torch.cat" in graph["lines"][other["line"]]["code"]


def test_no_launch_is_above_the_machines_limit():
    data = data_of(page_text(measured_block()))
    regions = [r for g in data["graphs"] for r in g["regions"] if r["measured_us"]]
    best = max(1e6 * r["work"] / r["measured_us"] for r in regions)
    assert data["limits"]["arithmetic"] >= best


def test_a_users_line_cannot_end_the_data():
    def f(x):
        return x.sin() + len("</script><script>alert(1)</script>")

    text = page_text(tofuse.explain(f)(torch.randn(3)))
    assert "</script><script>alert" not in text
    assert any("</script>" in x["code"] for x in data_of(text)["graphs"][0]["lines"])


def test_reports_without_a_program_have_a_page_too():
    assert data_of(page_text(Report()))["graphs"] == []
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
def opened(browser, page):
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


@in_a_browser
def test_clicks_show_details(opened):
    assert "How to read it" in panel(opened)
    opened.click(".op")
    assert "Operation" in panel(opened) and "Runs in" in panel(opened)
    assert "h = F.gelu(x @ w + b)" in panel(opened)
    assert "Its launch, measured" in panel(opened)
    opened.click(".port")
    assert "Input" in panel(opened) and "Read by" in panel(opened)
    opened.click(".edge.cut circle")
    text = panel(opened)
    assert "Not fused" in text and "One side is a library call" in text
    assert "What you can do" in text and "reported.py" in text
    opened.click(".region.kernel > rect")
    opened.run("document.querySelectorAll('#table button')[1].click()")
    text = panel(opened)
    assert "Kernel" in text and "Measured" in text and "Loops" in text
    opened.click("#panel details summary")
    assert "nest kernel" in opened.run("document.querySelector('#panel details pre').innerText")


@in_a_browser
def test_links_lead_from_reasons_to_the_graph(opened):
    opened.click("#rules .links button")
    assert "Not fused" in panel(opened)
    assert opened.run("document.querySelectorAll('.edge.on').length") >= 1
    assert re.search(r"#0\.edge\.\d+$", opened.run("location.href"))


@in_a_browser
def test_an_address_opens_what_it_names(opened, page):
    number = edge_number(opened, fused=True)
    opened.open(f"{page}#0.edge.{number}", 1280, 900)
    assert "Fused" in panel(opened) and "Memory traffic saved" in panel(opened)
    opened.open(f"{page}#7.edge.99999", 1280, 900)
    assert "How to read it" in panel(opened)


@in_a_browser
def test_search_finds_ops_lines_boxes_and_reasons(opened):
    opened.press("/")
    assert opened.run("document.activeElement.id") == "query"
    for words, kind, shown in (
        ("erf", "op", "Operation"),
        ("layer_norm", "line", "Line of your code"),
        ("softmax_add", "kernel", "Kernel"),
        ("library call mm", "not fused", "Not fused"),
        ("primals_2", "input", "Input"),
    ):
        opened.run("document.getElementById('query').value = ''")
        opened.run("document.getElementById('query').focus()")
        opened.type(words)
        kinds = opened.run("[...document.querySelectorAll('#hits .what')].map((n) => n.innerText)")
        assert kind in kinds, (words, kinds)
        for _ in range(kinds.index(kind)):
            opened.press("ArrowDown")
        opened.press("Enter")
        assert shown in panel(opened)
        assert opened.run("document.getElementById('hits').hidden")
    opened.type("no such thing")
    assert "Nothing here" in opened.run("document.getElementById('hits').innerText")


@in_a_browser
def test_the_keyboard_walks_along_values(opened):
    opened.run("document.getElementById('graph').focus()")
    opened.press("ArrowDown")
    first = panel(opened)
    opened.press("ArrowDown")
    second = panel(opened)
    opened.press("ArrowUp")
    assert first != second and panel(opened) == first
    opened.press("Escape")
    assert "How to read it" in panel(opened)


@in_a_browser
def test_tabs_change_the_graph(opened):
    opened.click("#tab-1")
    assert opened.run("document.getElementById('tab-1').getAttribute('aria-selected')") == "true"
    names = opened.run("[...document.querySelectorAll('#table td button')].map((n) => n.innerText)")
    assert names == [r.name for r in measured_block().backward.regions]


@in_a_browser
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True])
def test_nothing_runs_over_the_edge(browser, page, width: int, dark: bool):
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
    if width == 390:  # the details lie over the foot of the page, and go away again
        assert browser.run("getComputedStyle(document.getElementById('panel')).position") == "fixed"
        browser.click("#panel .close")
        assert not browser.run("document.getElementById('panel').classList.contains('open')")
    assert browser.errors == []


@in_a_browser
def test_a_large_program_draws(browser, tmp_path):
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

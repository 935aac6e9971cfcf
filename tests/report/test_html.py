"""The HTML page: needs nothing else, says what it shows, the same for the same folder."""

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from figure_samples import a_run, data_of, sweep, write_folder, write_quality
from report_samples import PROVENANCE
from rich.console import Group
from rich.panel import Panel
from rich.text import Text
from typer.testing import CliRunner

from focus_bench.cli.app import app
from focus_bench.report.figures.data import load_report
from focus_bench.report.figures.theme import PLACEHOLDERS, THEMES
from focus_bench.report.html.facts import tiles
from focus_bench.report.html.files import write_figures, write_html
from focus_bench.report.html.page import report_html
from focus_bench.report.html.renderables import renderable_html
from focus_bench.report.layout import Column, FittedTable
from focus_bench.report.results import PointResult, result_of

VOID = {"meta", "link", "br", "hr", "img", "input"}
# Attributes that make a browser load something.
LOADING = {"src", "href", "xlink:href", "data", "poster", "srcset", "action", "background"}


class Page(HTMLParser):
    """Collects what a test asks of a page; fails on tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.stack: list[str] = []
        self.references: list[str] = []
        self.ids: list[str] = []
        self.svgs: list[dict[str, str]] = []
        self.words: list[str] = []
        self.in_figure: list[str] = []
        self.feed(text)
        assert self.stack == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.references += [value for name, value in values.items() if name in LOADING]
        self.ids += [values["id"]] if "id" in values else []
        if tag == "svg":
            self.svgs.append(values)
            self.in_figure.append("figure" if "figure" in self.stack else "")
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.stack.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.stack.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("page")
    failed = sweep(batches=(512,), blocks=(32,))[:1]
    points = sweep(blocks=(32,), alphas=(1.2, 1.5))
    return [write_folder(root / "one", points, failed=failed), write_quality(root / "eval")]


@pytest.fixture(scope="module")
def text(folders: list[Path]) -> str:
    return report_html(load_report(folders))


def test_the_page_refers_to_nothing_outside_itself(text: str) -> None:
    page = Page(text)
    assert page.references
    assert all(ref.startswith("#") or ref == "data:," for ref in page.references)
    assert not re.search(r"https?:|//[a-z]|@import|<script|<iframe|@font-face", text)
    assert not re.search(r"url\((?!#)", text)


def test_ids_stand_once_and_every_link_has_its_target(text: str) -> None:
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    targets = [ref[1:] for ref in page.references if ref.startswith("#")]
    targets += re.findall(r"url\(#([^)]+)\)", text)
    assert set(targets) <= set(page.ids)


def test_every_figure_has_a_text_alternative_and_its_numbers(text: str) -> None:
    page = Page(text)
    assert len(page.svgs) >= 10
    assert set(page.in_figure) == {"figure"}
    for svg in page.svgs:
        assert svg["role"] == "img"
        assert len(svg["aria-label"]) > 40
    assert any("focus \u03b11.2 measured: 8: 162" in svg["aria-label"] for svg in page.svgs)
    assert text.count("<figure ") == text.count("<summary>Numbers</summary>")


def test_svgs_parse_and_take_every_colour_from_the_theme(text: str) -> None:
    svgs = re.findall(r"<svg .*?</svg>", text, flags=re.DOTALL)
    assert svgs
    for svg in svgs:
        root = ElementTree.fromstring(svg)
        assert root.attrib["viewBox"].startswith("0 0 320 ")
        colours = set(re.findall(r"#[0-9a-fA-F]{6}\b", svg))
        assert not colours & set(PLACEHOLDERS.values())
        assert colours <= {"#000000"}  # of marks without a fill or an edge
    used = set(re.findall(r"var\(--([a-z0-9-]+)\)", text)) - {"font"}
    assert used <= set(THEMES["light"])


def test_themes_have_the_same_roles_and_readable_text() -> None:
    assert THEMES["light"].keys() == THEMES["dark"].keys()
    for theme in THEMES.values():
        for role in ("ink", "muted", "accent", "warn", "bad"):
            assert _contrast(theme[role], theme["surface"]) >= 4.5
        for role in (name for name in theme if name.startswith("policy-")):
            assert _contrast(theme[role], theme["surface"]) >= 2.8


def _contrast(one: str, other: str) -> float:
    """WCAG 2 contrast ratio."""
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_the_page_says_what_its_figures_rest_on_and_how_they_came_to_be(text: str) -> None:
    page = Page(text)
    for words in (
        "dummy weights",
        "synthetic acceptance (synthetic:sharegpt=2,scatter=0,fitted)",
        "predicted: calibrated on cpu (a, b)",
        "out of <memory>",
        "6 measured, 6 predicted, 2 evaluated, 1 failed",
        "Error of the predictions",
        "numpy",
        "10 of 12 rows used",
        "Speed-up over batch size and block length: needs a baseline",
    ):
        assert words in page.text, words
    assert text.count('<p class="rests">') == text.count("<figure ")


def test_the_same_folder_gives_the_same_page(folders: list[Path], text: str) -> None:
    assert report_html(load_report(folders)) == text


@pytest.mark.parametrize("kind", ["one point", "predicted", "failed", "failed requests", "eval"])
def test_pages_of_folders_with_little_in_them(kind: str, tmp_path: Path) -> None:
    point = sweep(batches=(8,), blocks=(32,))[-1:]
    make = {
        "one point": lambda: write_folder(tmp_path / "a", point, sources=("measured",)),
        "predicted": lambda: write_folder(tmp_path / "a", point, sources=("predicted",)),
        "failed": lambda: write_folder(tmp_path / "a", [], failed=point),
        "failed requests": lambda: write_folder(tmp_path / "a", point, failed_requests=True),
        "eval": lambda: write_quality(tmp_path / "a"),
    }
    text = report_html(load_report([make[kind]()]))
    page = Page(text)
    assert "Not shown" in page.text
    assert ("Quality against throughput" in page.text) == (kind == "eval") or "no folder of" in text
    if kind == "failed":
        assert page.svgs == []
        assert "1 point" in page.text
    else:
        assert page.svgs
    if kind == "failed requests":
        assert "no <page>" in page.text
        assert "no point has an output throughput" not in page.text


def test_headlines_leave_out_bounds_and_name_one_of_several_devices() -> None:
    def result(policy: str, tokens: int, hardware: str) -> PointResult:
        (point,) = sweep((policy,), batches=(8,), blocks=(32,))
        run = a_run(tokens=tokens, source="predicted")
        return result_of(point, run, provenance=PROVENANCE, hardware=hardware)

    tokens = {"baseline": 100, "focus": 200, "ideal": 500}
    slow = [result(policy, n, "a100") for policy, n in tokens.items()]
    fast = [result(policy, 3 * n, "h200") for policy, n in tokens.items()]
    throughput, speedup = (tile.text for tile in tiles(data_of(slow))[:2])
    assert throughput == "highest output throughput: focus, batch 8, B 32, predicted"
    assert speedup == "best speed-up over the baseline: focus, batch 8, B 32, predicted"
    throughput, speedup = (tile.text for tile in tiles(data_of(slow + fast))[:2])
    assert throughput == "highest output throughput: focus, batch 8, B 32, predicted on h200"
    assert "focus, batch 8, B 32, predicted on " in speedup
    assert tiles(data_of(slow + fast))[1].value == tiles(data_of(slow))[1].value == "2.00x"
    assert len(tiles(data_of([slow[2]]))) == 1  # nothing but the count


def test_a_page_of_nothing_opens() -> None:
    assert "no results" in Page(report_html(data_of())).text


def test_thirty_points_stay_small(tmp_path: Path) -> None:
    points = sweep(("baseline", "focus"), (8, 16, 32), (8, 16, 32, 64), (1.2, 1.5))[:30]
    file = tmp_path / "page.html"
    write_html(load_report([write_folder(tmp_path / "a", points, sources=("measured",))]), file)
    assert 100_000 < file.stat().st_size < 2_000_000


def test_figures_are_written_light_and_dark_with_their_labels(tmp_path: Path) -> None:
    data = load_report([write_folder(tmp_path / "a", sweep(batches=(8,), blocks=(32,)))])
    files = write_figures(data, tmp_path / "new" / "figures")
    names = {file.name for file in files}
    for suffix in (".svg", ".png", "-dark.svg", "-dark.png"):
        assert f"throughput{suffix}" in names
        assert f"latency-3{suffix}" in names
    for file in files:
        content = file.read_bytes()
        if file.suffix == ".png":
            assert content.startswith(b"\x89PNG")
            continue
        root = ElementTree.fromstring(content)
        words = " ".join(
            "".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")
        )
        assert "dummy weights" in words
        theme = THEMES["dark" if "-dark" in file.name else "light"]
        assert theme["surface"] in content.decode()
    before = {file: file.read_bytes() for file in files}
    assert {file: file.read_bytes() for file in write_figures(data, files[0].parent)} == before


def test_renderables_become_html_with_their_styles() -> None:
    table = FittedTable(
        columns=(
            Column(heading="a\nb", cells=("<x>", "y"), is_name=True),
            Column(heading="n", cells=("1", "2")),
        )
    )
    html = renderable_html(Group(Text("note", style="yellow"), Text(), table))
    assert html.startswith('<p class="label">note</p>')
    assert '<th class="name">a b</th><th class="number">n</th>' in html
    assert '<td class="name">&lt;x&gt;</td><td class="number">1</td>' in html
    assert renderable_html(None) == ""
    with pytest.raises(TypeError, match="Panel"):
        renderable_html(Panel("x"))


def test_the_command_writes_page_and_figures(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "a", sweep(batches=(8,), blocks=(32,))[:1], sources=("measured",)
    )
    page, figures = tmp_path / "page.html", tmp_path / "figures"
    command = ["report", str(folder), "--html", str(page), "--figures", str(figures)]
    command += ["--against", str(folder)]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert "Changes since a" in Page(page.read_text(encoding="utf-8")).text
    assert (figures / "throughput.svg").is_file()
    assert "page.html" in result.output

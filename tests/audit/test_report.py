"""The report in a browser: what a person does with it, on a desktop and on a phone, without a word on the console."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tbe_aot_audit.compare import compare
from tbe_aot_audit.errors import AuditError
from tbe_aot_audit.report import make_report
from tbe_aot_audit.source import open_source
from tests.audit.making import LIB, Files, edit_manifest, write_wheel

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
VARIANT = "scale__fp16_256_long"
DESKTOP, PHONE = (1280, 800), (390, 800)
# Variants that a large report is made of.
MANY = 4000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = os.environ.get("TBE_AOT_CHROMIUM") or next(
        filter(None, map(shutil.which, BROWSERS)), None
    )
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"none of {', '.join(BROWSERS)} is installed")
        pytest.skip(f"none of {', '.join(BROWSERS)} is installed; TBE_AOT_CHROMIUM names another")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield running
        running.close()


@contextlib.contextmanager
def opened(
    browser: Browser, path: Path, place: str = "", size=DESKTOP, scheme="light"
) -> Iterator[Page]:
    """The report in a window; anything on the console or asked of the network fails the test."""
    width, height = size
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    said: list[str] = []
    page.on("console", lambda message: said.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith(("file:", "data:")) else said.append(request.url)
        ),
    )
    page.goto(f"file://{path}{place}")
    page.wait_for_selector("main h1")
    yield page
    page.close()
    assert said == []


def wait_until(page: Page, expression: str) -> None:
    """Until JavaScript is true. Playwright's own way is a string that the page evaluates, which the page's policy forbids."""
    deadline = time.monotonic() + 30
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, expression
        page.wait_for_timeout(20)


def worse(files: Files) -> Files:
    def change(manifest) -> None:
        for variant in manifest["kernels"]["scale"]["variants"]:
            if variant["name"] == VARIANT:
                variant.update(registers=variant["registers"] - 10, cubin_sha256="0" * 64)
        manifest["kernels"].pop("fill")
        manifest["kernels"]["scale"]["source_sha256"] = "0" * 64

    return edit_manifest(files, change)


@pytest.fixture(scope="module")
def report(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the toy kernels, against a build that needed fewer registers, with the machine code of one variant."""
    folder = tmp_path_factory.mktemp("report")
    wheel = open_source(write_wheel(folder / "new.whl", files))
    older = open_source(write_wheel(folder / "old.whl", worse(files)))
    path = folder / "report.html"
    path.write_bytes(make_report(wheel, older, [VARIANT]))
    return path


@pytest.fixture(scope="module")
def large(files: Files, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As many variants as a full build of everything planned would have."""
    manifest = json.loads(files[f"{LIB}manifest.json"])
    scale = manifest["kernels"].pop("scale")
    manifest["kernels"] |= {
        f"scale{number}": scale
        | {
            "variants": [
                v | {"name": f"scale{number}{v['name'].removeprefix('scale')}"}
                for v in scale["variants"]
            ]
        }
        for number in range(MANY // len(scale["variants"]))
    }
    folder = tmp_path_factory.mktemp("large")
    (folder / "manifest.json").write_text(json.dumps(manifest))
    started = time.monotonic()
    data = make_report(open_source(folder / "manifest.json"))
    assert time.monotonic() - started < 15
    assert len(data) < 15 * 2**20
    (folder / "report.html").write_bytes(data)
    return folder / "report.html"


def names(page: Page) -> list[str]:
    links = page.locator("table.rows tbody tr[data-row] a")
    return list(links.evaluate_all("all => all.map(a => a.firstChild.textContent)"))


def test_every_view_is_reached_by_its_link(browser: Browser, report: Path):
    with opened(browser, report) as page:
        for title, heading in (
            ("Variants", "Variants"),
            ("Coverage", "Coverage"),
            ("Checks", "It is what was built"),
            ("Diff", "What changed"),
            ("Overview", "Build "),
        ):
            page.get_by_role("navigation").get_by_role("link", name=title).click()
            page.wait_for_selector(f"h1:has-text('{heading}')")
            assert page.locator("nav a[aria-current=page]").inner_text() == title
        assert page.locator(".tile", has_text="variants built").locator("b").inner_text() == "11"
        assert page.locator(".tile", has_text="verified").count() == 1


def test_filters(browser: Browser, report: Path):
    with opened(browser, report, "#/variants") as page:
        assert "11 of 11 variants" in page.locator(".count").inner_text()
        page.fill("#f-q", "long 256 sm90")
        assert names(page) == ["scale__fp16_256_long", "scale__fp32_256_long"]
        page.fill("#f-q", "")
        page.select_option("#f-arch", "sm100")
        assert "5 of 11" in page.locator(".count").inner_text()
        page.select_option("#f-kernel", "scale")
        page.select_option("#f-dtype", "fp16")
        assert names(page) == [
            "scale__fp16_256_long",
            "scale__fp16_64_long",
            "scale__fp16_64_short",
        ]
        # The address says it all: going away and back, and opening it elsewhere, keep it.
        address = page.url
        page.locator("table.rows tbody a").first.click()
        page.wait_for_selector("h1.mono")
        page.go_back()
        page.wait_for_selector("table.rows")
        assert "3 of 11" in page.locator(".count").inner_text()
    with opened(browser, report, address[address.index("#") :]) as page:
        assert "3 of 11" in page.locator(".count").inner_text()


def test_sorting(browser: Browser, report: Path):
    with opened(browser, report, "#/variants?arch=sm90") as page:
        assert names(page) == sorted(names(page))
        page.click("[data-sort=registers]")
        column = page.locator("table.rows tbody tr[data-row] td:nth-child(3)")
        registers = [int(text) for text in column.all_inner_texts()]
        assert registers == sorted(registers, reverse=True)
        assert page.locator("th[aria-sort=descending]").count() == 1
        page.click("[data-sort=registers]")
        registers = [int(text) for text in column.all_inner_texts()]
        assert registers == sorted(registers)


def test_a_variant_s_page(browser: Browser, report: Path):
    with opened(browser, report, f"#/variant/sm90/{VARIANT}") as page:
        assert page.locator("h1").inner_text() == VARIANT
        text = page.locator("main").inner_text()
        assert "LDG.E.128" in page.locator("pre .hot").first.inner_text()
        assert (
            "registers 18" in text.replace(",", "")
            or "registers " in page.locator(".change").first.inner_text()
        )
        for part in ("Occupancy", "Global loads", "Budget", "Parameters", "One axis away"):
            assert part in text
        page.get_by_role("link", name="on sm100").click()
        page.wait_for_selector("a:has-text('on sm90')")
        # One axis away: the same but for the size.
        page.locator("section", has_text="One axis away").get_by_role("link").first.click()
        wait_until(page, f"document.querySelector('h1').textContent !== '{VARIANT}'")
    with opened(browser, report, "#/variant/sm90/nothing") as page:
        assert "No such variant" in page.locator("h1").inner_text()


def test_the_diff(browser: Browser, report: Path):
    with opened(browser, report, "#/diff") as page:
        assert page.locator("table.changed tbody tr").count() == 2
        page.select_option("#f-only", "intolerable")
        assert "2 of 2" in page.locator(".count").inner_text()
        page.fill("input[type=search]", "sm90")
        assert page.locator("table.changed tbody tr").count() == 1
        assert "registers" in page.locator(".change.intolerable").inner_text()
        assert "fill" in page.locator("section", has_text="Added: 1").inner_text()
        others = page.locator("section", has_text="Other differences").inner_text()
        assert "scale" in others
        assert "0000" in others


def test_the_heat_map_leads_to_variants(browser: Browser, report: Path):
    with opened(browser, report) as page:
        page.select_option("[data-key=kernel]", label="scale")
        assert page.locator("table.heat").count() == 2
        page.locator("table.heat a").first.click()
        page.wait_for_selector("h1.mono")
        page.go_back()
        page.select_option("[data-key=kernel]", label="scale")
        page.select_option("[data-key=column]", index=1)
        page.locator("table.heat a").first.click()
        page.wait_for_selector("table.rows")
        assert "dtype" in page.url or "scale" in page.url


def test_the_keyboard_alone(browser: Browser, report: Path):
    with opened(browser, report, "#/variants") as page:
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.className") == "skip"
        page.focus("#f-q")
        page.keyboard.type("fp16")
        page.locator("table.rows tbody a").first.focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        chosen = page.evaluate("document.activeElement.firstChild.textContent")
        assert chosen == names(page)[2]
        page.keyboard.press("Enter")
        page.wait_for_selector("h1.mono")
        assert page.locator("h1").inner_text() == chosen
        assert page.evaluate("document.activeElement.id") == "main"


@pytest.mark.parametrize(
    "place", ["", "#/variants", f"#/variant/sm90/{VARIANT}", "#/coverage", "#/checks", "#/diff"]
)
def test_a_phone_shows_all_of_it(browser: Browser, report: Path, place: str):
    with opened(browser, report, place, PHONE) as page:
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
        if place == "#/variants":
            cut = "[...document.querySelectorAll('.rows td')].filter(x => x.offsetWidth && x.scrollWidth > x.offsetWidth + 1).length"
            assert page.evaluate(cut) == 0


def test_light_and_dark(browser: Browser, report: Path):
    background = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, report) as page:
        light = page.evaluate(background)
        page.click("#theme")
        assert page.evaluate(background) == light
        page.click("#theme")
        dark = page.evaluate(background)
        assert dark != light
    with opened(browser, report, scheme="dark") as page:
        assert page.evaluate(background) == dark


def test_it_is_quick_with_many_variants(browser: Browser, large: Path):
    with opened(browser, large, "#/variants") as page:
        assert "of 4,0" in page.locator(".count").inner_text()
        # Only what is seen is there.
        assert page.locator("table.rows tbody tr").count() < 100
        timing = """async () => {
            const field = document.querySelector('#f-q');
            const started = performance.now();
            for (const text of ['s', 'sc', 'scale7', 'scale77 long', '']) {
                field.value = text;
                field.dispatchEvent(new Event('input'));
                await new Promise(requestAnimationFrame);
            }
            return (performance.now() - started) / 5;
        }"""
        assert page.evaluate(timing) < 300
        page.evaluate("scrollTo(0, document.body.scrollHeight / 2)")
        wait_until(page, "Number(document.querySelector('tr[data-row]').dataset.row) > 1000")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        wait_until(
            page,
            "[...document.querySelectorAll('tr[data-row]')].at(-1).getBoundingClientRect().top < innerHeight",
        )


def test_machine_code_of_what_is_not_there(wheel: Path):
    with pytest.raises(AuditError, match="no variant is called"):
        make_report(open_source(wheel), None, ["nothing"])


@pytest.mark.parametrize(
    "summary", ["</script><script>alert(1)</script>", "x<!--<script>", "x<!--<SCRIPT "]
)
def test_what_the_data_holds_ends_no_script(
    browser: Browser, files: Files, tmp_path: Path, summary: str
):
    def change(manifest) -> None:
        manifest["kernels"]["scale"]["summary"] = summary

    wheel = open_source(write_wheel(tmp_path / "a.whl", edit_manifest(files, change)))
    data = make_report(wheel)
    assert data.decode().count("</script>") == 2
    assert compare(wheel.manifest, wheel.manifest, ("a", "a")).unchanged == 11
    (tmp_path / "report.html").write_bytes(data)
    with opened(browser, tmp_path / "report.html") as page:
        assert page.get_by_text(summary).count() == 1


@pytest.mark.parametrize("name", ["a%zz", "a?b=c", "a/b#c d&e%20f", "<img src=x>", "__proto__"])
def test_a_variant_of_any_name_has_its_page(
    browser: Browser, files: Files, tmp_path: Path, name: str
):
    def change(manifest) -> None:
        for variant in manifest["kernels"]["scale"]["variants"]:
            if variant["name"] == VARIANT:
                variant.update(name=name)

    made = edit_manifest(files, change)
    wheel = open_source(write_wheel(tmp_path / "new.whl", made))
    older = open_source(write_wheel(tmp_path / "old.whl", files))
    (tmp_path / "report.html").write_bytes(make_report(wheel, older))
    with opened(browser, tmp_path / "report.html", "#/variants") as page:
        for view in ("#/variants?arch=sm90", "#/diff"):
            page.goto(f"file://{tmp_path}/report.html{view}")
            page.get_by_role("link", name=name, exact=True).first.click()
            page.wait_for_selector("h1.mono")
            assert page.locator("h1").inner_text() == name
            assert name in page.title()


def test_findings_on_a_phone(browser: Browser, files: Files, tmp_path: Path):
    def change(manifest) -> None:
        manifest["archs"]["sm90"]["index_sha256"] = "0" * 64

    wheel = write_wheel(tmp_path / "a.whl", edit_manifest(files, change))
    (tmp_path / "report.html").write_bytes(make_report(open_source(wheel)))
    with opened(browser, tmp_path / "report.html", "#/checks", PHONE) as page:
        assert "Something is wrong" in page.locator("h1").inner_text()
        assert "findings: do not use it" in page.locator("main").inner_text()
        assert page.locator(".check li", has_text="0" * 64).count() > 0
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE[0]


def test_what_was_not_compared_is_said(browser: Browser, files: Files, tmp_path: Path):
    (tmp_path / "manifest.json").write_bytes(files[f"{LIB}manifest.json"])
    (tmp_path / "report.html").write_bytes(make_report(open_source(tmp_path / "manifest.json")))
    with opened(browser, tmp_path / "report.html", "#/checks") as page:
        assert page.locator("h1").inner_text() == "Nothing wrong was found"
        assert "had nothing to compare with" in page.locator("main").inner_text()

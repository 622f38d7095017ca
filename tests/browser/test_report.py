"""report.html in a real browser: nothing is loaded or overflows, on desk and phone, light and dark."""

import functools

import pytest

from crucible.report.page import POLICY, page

DESK, PHONE = (1280, 900), (390, 844)
VIEWS = [(size, scheme) for size in (DESK, PHONE) for scheme in ("light", "dark")]
SHOWN = {(DESK, "light"): "report.png", (PHONE, "dark"): "report-phone.png"}  # in README.md

OVERFLOW = """() => [...document.querySelectorAll('main *')].filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && box.right > innerWidth + 1 && !e.closest('.scroll, pre, .hl');
}).map(e => `${e.tagName} ${e.className} ${e.textContent.slice(0, 60)}`)"""
CONTRAST = """() => {
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number);
    return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
  const of = (e, name) => light(getComputedStyle(e)[name]);
  const paper = of(document.body, 'backgroundColor');
  return ['.lead', '.lead .badge', '.note', 'figcaption', 'td', 'a', 'summary'].map(name => {
    const ink = of(document.querySelector(name), 'color');
    return [name, (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05)];
  });
}"""


@pytest.fixture(scope="module")
def opened(chromium):
    """open(path, size, scheme) -> (page, requests beyond the file, errors of its console); each only once."""
    contexts = []

    @functools.cache
    def open_(path, size=DESK, scheme="light"):
        width, height = size
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        asked, errors = [], []

        def seen(route):
            asked.append(route.request.url)
            route.abort()

        context.route(lambda url: url != path.as_uri() and not url.startswith("data:"), seen)
        shown = context.new_page()
        shown.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        shown.goto(path.as_uri(), wait_until="load")
        return shown, asked, errors

    yield open_
    for context in contexts:
        context.close()


def written(folder, body):
    """A page of the report's style and policy with another body."""
    path = folder / "page.html"
    path.write_text(page("Crucible report", body))
    return path


@pytest.mark.parametrize(("size", "scheme"), VIEWS, ids=lambda v: v if isinstance(v, str) else str(v[0]))
def test_the_page_asks_for_nothing_and_does_not_overflow(report, opened, size, scheme, pictures):
    shown, asked, errors = opened(report, size, scheme)
    assert not asked and not errors
    wide = shown.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1] == size[0]
    assert not shown.evaluate(OVERFLOW)
    low = [(name, ratio) for name, ratio in shown.evaluate(CONTRAST) if ratio < 4.5]
    assert not low, f"text that is hard to read in {scheme}: {low}"
    if pictures and (size, scheme) in SHOWN:
        shown.screenshot(path=pictures / SHOWN[size, scheme])


def test_every_figure_is_drawn_with_a_caption_and_can_be_read_on_a_phone(report, opened):
    shown, *_ = opened(report, PHONE, "light")
    figures = shown.evaluate(
        "() => [...document.querySelectorAll('figure')].map(f => [f.querySelector('img').naturalWidth, "
        "f.querySelector('img').getBoundingClientRect().width, f.querySelector('figcaption').textContent])"
    )
    assert len(figures) >= 15
    assert all(pixels > 400 and shown > 500 and caption.strip() for pixels, shown, caption in figures)


def test_a_wide_table_scrolls_by_itself_and_keeps_its_words_whole(report, opened):
    shown, *_ = opened(report, PHONE, "light")
    boxes = shown.evaluate(
        "() => [...document.querySelectorAll('.scroll')].filter(e => e.querySelector('table'))"
        ".map(e => [e.scrollWidth, e.clientWidth])"
    )
    assert any(inner > outer for inner, outer in boxes) and all(outer <= PHONE[0] for _, outer in boxes)
    name = shown.locator("td", has_text="attention_diagnostics.cu").first.bounding_box()
    assert name["height"] < 30, "a file's name is broken over lines"


def test_light_and_dark_differ(report, opened):
    paper = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = (opened(report, DESK, scheme)[0].evaluate(paper) for scheme in ("light", "dark"))
    assert light == "rgb(255, 255, 255)" and dark != light


def test_the_verdict_is_seen_before_anything_else(report, opened):
    shown, *_ = opened(report, PHONE, "light")
    box = shown.locator(".lead .badge").bounding_box()
    assert box["y"] + box["height"] < PHONE[1] / 2
    first = shown.locator("section h2").first.text_content()
    assert first.startswith("Results")


def test_what_a_page_would_load_is_seen_and_the_policy_of_the_report_refuses_it(report, opened, tmp_path):
    image = '<img src="https://a.example/x.png">'
    bare = tmp_path / "bare.html"
    bare.write_text(f"<!DOCTYPE html><body>{image}</body>")
    assert opened(bare)[1] == ["https://a.example/x.png"]
    held, asked, errors = opened(written(tmp_path, f"{image}<script>document.title = 'ran'</script>"))
    assert not asked and any("Content Security Policy" in text for text in errors)
    assert held.title() == "Crucible report" and POLICY in report.read_text()


def test_a_line_that_is_wider_than_the_screen_is_seen(opened, tmp_path):
    wide, *_ = opened(written(tmp_path, '<p style="width: 500px">wide</p>'), PHONE)
    assert wide.evaluate(OVERFLOW) == ["P  wide"]

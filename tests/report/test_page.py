"""report.html: nothing outside the page is loaded, whatever a notebook displays."""

import base64

import pytest

nbformat = pytest.importorskip("nbformat")

from crucible.report import render
from crucible.report.page import external_references, highlight, page
from crucible.report.tables import table

v4 = nbformat.v4


@pytest.mark.parametrize(
    "text",
    [
        "<script>1</script>",
        '<img src="https://a.example/x.png">',
        "<img src=//a.example/x.png>",
        '<link rel="stylesheet" href="x.css">',
        '<svg><image href="x.png"/></svg>',
        "<style>@import 'x.css';</style>",
        "<style>p { background: url(x.png) }</style>",
        '<p style="background:url(http://a.example)">',
        '<body onload="go()">',
        "<iframe></iframe>",
    ],
)
def test_a_reference_outside_the_page_is_seen(text):
    assert external_references(text)


def test_links_data_and_code_that_talks_about_sources_are_no_references():
    inside = '<a href="https://a.example">x</a><img src="data:image/png;base64,AA=="><a href="#s">y</a>'
    assert not external_references(inside + highlight('src = "x"; data=3\n"<script src=x>"'))
    assert not external_references(page("t", ""))


def test_outputs_with_references_fall_back_to_text():
    outside = v4.new_output("display_data", {"text/html": "<img src='x.png'>", "text/plain": "a picture"})
    assert render.output(outside) == "<pre>a picture</pre>"
    shown = render.markdown("![remote](https://a.example/x.png) <script>1</script>\n\n|a|b|\n|-|-|\n|1|2|\n")
    assert not external_references(shown) and '<div class="scroll"><table>' in shown


def test_a_figure_is_embedded_with_its_caption_once():
    data = {"image/png": base64.b64encode(b"png").decode() + "\n", "text/plain": "Heat <b>"}
    note = v4.new_output("display_data", {"text/plain": "Heat"}, metadata={"crucible": {"caption": True}})
    cell = v4.new_code_cell("1", outputs=[v4.new_output("display_data", data), note])
    text = render.notebook(v4.new_notebook(cells=[cell]))
    assert text.count("<figcaption>Heat &lt;b&gt;</figcaption>") == 1 and "data:image/png;base64,cG5n" in text


def test_tables_escape_align_and_format():
    made = table(("name", "n"), [("<a|b>", 1234567), ("x", 0.5)], caption="c")
    assert "&lt;a|b&gt;" in made.html() and ">1,234,567<" in made.html()
    assert made.markdown().splitlines()[2:] == [
        "| name   |         n |",
        "| ------ | --------: |",
        "| <a\\|b> | 1,234,567 |",
        "| x      |       0.5 |",
    ]

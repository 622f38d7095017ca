"""The look of report.html: one self-contained page, light and dark, wide and narrow, no script."""

import functools
import html
import re
from html.parser import HTMLParser

_TAGS = {"script", "iframe", "object", "embed", "base", "link"}
_ATTRIBUTES = {"src", "srcset", "poster", "data", "action", "background", "xlink:href"}
_STYLE = re.compile(r"url\(\s*[\"']?(?!data:|#)|@import", re.IGNORECASE)
# What a browser may load: what the page itself carries, and nothing else.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

CSS = """
:root { color-scheme: light dark; --ink: #1f2328; --muted: #656d76; --paper: #fff; --card: #f6f8fa;
  --line: #d8dee4; --link: #0a62b8; --pass: #0a7a50; --fail: #b3400a; --info: #656d76; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --muted: #9aa4af; --paper: #0f1318;
  --card: #181d24; --line: #313a45; --link: #6cb6ff; --pass: #3fce98; --fail: #ff9055; --info: #9aa4af; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 system-ui, -apple-system,
  "Segoe UI", Roboto, "Noto Sans", sans-serif; -webkit-text-size-adjust: 100%; }
main { max-width: 54rem; margin: 0 auto; padding: 1.5rem 1rem 4rem; }
h1 { font-size: 1.8rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.4rem; margin: 2.8rem 0 .6rem; padding-top: 1rem; border-top: 1px solid var(--line); }
h3 { font-size: 1.15rem; margin: 2rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1.5rem 0 .3rem; }
a { color: var(--link); }
code, pre { font: .86em/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p code, li code, td code { background: var(--card); border-radius: 4px; padding: .1em .3em; }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .8rem;
  margin: .6rem 0; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
pre.error { border-color: var(--fail); }
details { margin: .4rem 0; }
summary { cursor: pointer; color: var(--muted); font-size: .85rem; }
.scroll { overflow-x: auto; margin: .8rem 0; }
table { border-collapse: collapse; font-size: .9rem; }
caption { text-align: left; color: var(--muted); padding-bottom: .3rem; }
th, td { padding: .3rem .7rem; border-bottom: 1px solid var(--line); vertical-align: top; text-align: left; }
th { white-space: nowrap; font-weight: 600; }
td[style*=right] { white-space: nowrap; } td.long { min-width: 15rem; }
.where td:first-child { white-space: nowrap; } .where td { overflow-wrap: anywhere; }
figure { margin: 1.2rem 0; }
figure img { display: block; width: 100%; height: auto; background: #fff; border-radius: 8px;
  padding: .4rem; }
@media (prefers-color-scheme: dark) { figure img { filter: invert(.9) hue-rotate(180deg); } }
@media (max-width: 40rem) { table { font-size: .8rem; } th, td { padding: .25rem .4rem; }
  th { white-space: normal; } td[style*=left] { min-width: 5.5rem; } td.long { min-width: 12rem; }
  figure img { min-width: 38rem; } }
figcaption { color: var(--muted); font-size: .9rem; margin-top: .4rem; }
.lead { font-size: 1.1rem; }
.note { color: var(--muted); font-size: .9rem; }
.pass, .done { color: var(--pass); } .fail, .failed, .stopped { color: var(--fail); }
.measured, .skipped { color: var(--info); }
.badge { font-weight: 700; font-size: .8rem; text-transform: uppercase; letter-spacing: .04em; }
.card { border: 1px solid var(--line); border-left: 4px solid currentColor; border-radius: 8px;
  padding: .7rem 1rem; margin: .8rem 0; }
.card > div { color: var(--ink); } .card > .note { color: var(--muted); }
nav ul { padding-left: 1.2rem; }
@media print { details { display: none; } }
"""


class _References(HTMLParser):
    """Collects what a browser would load or run from outside the page."""

    def __init__(self):
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag, attrs):
        self._in_style = tag == "style"
        for name, value in attrs:
            value = (value or "").strip()
            inside = value.startswith(("data:", "#"))
            loads = name in _ATTRIBUTES or (name == "href" and tag != "a")
            styled = name == "style" and _STYLE.search(value)
            if (loads and not inside) or styled or name.startswith("on"):
                self.found.append(f"<{tag} {name}={value[:60]!r}>")
        if tag in _TAGS:
            self.found.append(f"<{tag}>")

    def handle_data(self, data):
        if self._in_style:
            self.found += [f"style: {m.group()}" for m in _STYLE.finditer(data)]

    def handle_endtag(self, tag):
        self._in_style = False


def external_references(text: str) -> list[str]:
    """Every place in an HTML text that would load or run something from outside the page; links are not."""
    parser = _References()
    parser.feed(text)
    parser.close()
    return parser.found


@functools.cache
def highlight_css() -> str:
    """Pygments styles for light and dark."""
    from pygments.formatters import HtmlFormatter

    light = HtmlFormatter(style="default").get_style_defs(".hl")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".hl")
    plain = ".hl, .hl pre { background: var(--card); }"
    return f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n{plain}"


def highlight(source: str, language: str = "python") -> str:
    """A highlighted code block; text of an unknown language is shown as it is."""
    from pygments import highlight as colour
    from pygments.formatters import HtmlFormatter
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return f"<pre>{html.escape(source)}</pre>"
    return colour(source, lexer, HtmlFormatter(cssclass="hl"))


def page(title: str, body: str) -> str:
    """The whole document."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f"<title>{html.escape(title)}</title>\n<style>{CSS}{highlight_css()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )

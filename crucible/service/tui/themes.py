"""Two calm themes, light and dark: few colours, each with one meaning."""

from textual.theme import Theme

DARK = Theme(
    name="crucible-dark",
    dark=True,
    primary="#7fb4ca",
    secondary="#c8a46e",
    accent="#7fb4ca",
    foreground="#d5d9de",
    background="#14171a",
    surface="#1a1e22",
    panel="#23282d",
    success="#8fbf8a",
    warning="#d9b36c",
    error="#e08a84",
    variables={"faint": "#7c858e", "line": "#2b3137", "input-selection-background": "#7fb4ca 35%"},
)
LIGHT = Theme(
    name="crucible-light",
    dark=False,
    primary="#1f6f8b",
    secondary="#8a5a12",
    accent="#1f6f8b",
    foreground="#24292e",
    background="#fbfaf7",
    surface="#f3f1ec",
    panel="#e9e6df",
    success="#2f7a3a",
    warning="#8a5a12",
    error="#b3382f",
    variables={"faint": "#6b7178", "line": "#d9d5cc", "input-selection-background": "#1f6f8b 25%"},
)
THEMES = {"dark": DARK, "light": LIGHT}

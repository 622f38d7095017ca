"""A figure with sliders: live in JupyterLab, a plain picture wherever there are no widgets."""

from collections.abc import Callable

from matplotlib.figure import Figure

from crucible.report.plots.style import png


class Explorer:
    """Shows `draw(**values)`; an option is an integer range (low, high, start), inclusive, or (names, start).

    Of names, `draw` gets the number.

    The bundle carries both the widget view and a PNG, and a front end takes the richest that it can
    show: JupyterLab the sliders, a static page or a report the picture of the start values.
    """

    def __init__(self, draw: Callable[..., Figure], caption: str, **options: tuple):
        self._caption = caption
        self._picture = png(draw(**{name: start for name, (*_, start) in options.items()}))
        self._widget = _widget(draw, self._picture, options)

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        bundle = {"image/png": self._picture, "text/plain": self._caption}
        if self._widget is not None:
            view = self._widget._repr_mimebundle_()
            bundle.update({k: v for k, v in view.items() if "widget-view" in k})
        return bundle


def _widget(draw: Callable[..., Figure], picture: bytes, options: dict[str, tuple]):
    try:
        import ipywidgets
    except ImportError:
        return None  # the picture is all there is to show
    image = ipywidgets.Image(value=picture, format="png", layout={"max_width": "100%"})

    def slider(name: str, first, *rest):
        common = dict(description=name, continuous_update=False, value=rest[-1])
        if isinstance(first, int):
            return ipywidgets.IntSlider(min=first, max=rest[0], **common)
        return ipywidgets.SelectionSlider(options=[(label, i) for i, label in enumerate(first)], **common)

    sliders = {name: slider(name, *option) for name, option in options.items()}

    def redraw(_change) -> None:
        image.value = png(draw(**{name: slider.value for name, slider in sliders.items()}))

    for slider in sliders.values():
        slider.observe(redraw, names="value")
    return ipywidgets.VBox([*sliders.values(), image])

"""Figures of the notebooks: one module per subject, one style, deterministic PNG and SVG."""

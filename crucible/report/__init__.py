"""Papermill driver, plots and assembly of the results report."""

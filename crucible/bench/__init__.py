"""Benchmarks: side-by-side measurements, never tests."""

"""Drift: what a numerically different attention does to the tokens of a seeded model, and why."""

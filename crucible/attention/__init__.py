"""Attention by variant name, on every device (contract section 4)."""

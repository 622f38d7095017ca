"""Paged K/V: page pool, page tables, packed slices and their validation."""

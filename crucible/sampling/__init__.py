"""Greedy, seeded and gumbel-id sampling with Philox draws (contract section 8)."""

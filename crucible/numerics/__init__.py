"""Scalar pieces of the arithmetic contract, bit comparison, digests and test inputs."""

"""Models: configuration, weights, tokenizer and the one forward pass."""

"""Gates: checks that compare bits, tokens or service and give a verdict."""

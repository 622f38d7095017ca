"""The small operations of a block (contract section 7), each launched the same way on every device."""

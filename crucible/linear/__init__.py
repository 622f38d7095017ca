"""Linear layers in f32 and int8 (contract section 6), on every device."""

"""The small operations of a block: embedding, RMSNorm, RoPE, K/V store, SwiGLU, residual (contract section 7)."""

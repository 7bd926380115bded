"""Recipe files: what stands in them, every fault with its line, clashes between them."""

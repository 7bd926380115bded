"""Optional kernels for embeddings on CPUs; the library's own way is beside them, and both are tested."""

"""Optional kernels for CPUs, beside the library's own way; both are tested."""

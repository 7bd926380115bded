"""Optional kernels for CPUs, as an alternative to the library's; both are tested."""

"""The foundation of `runtime`: settings, devices, memory, logs."""

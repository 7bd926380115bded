"""The ground floor of `runtime`: settings, device, memory, logs."""

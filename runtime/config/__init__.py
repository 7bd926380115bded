"""The ground floor of `runtime`: settings, the device and its memory, logs. Nothing here imports another room."""

"""Models of this machine as a backend, and what their requests ask of a queue."""

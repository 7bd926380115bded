"""`roundhouse models`: list models, and control residency by hand."""

"""`roundhouse models`: what a server serves, and residency by hand."""

"""Conversion of files into a form that an engine reads, in its own process."""

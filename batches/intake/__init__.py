"""The intake of files and batches: stored, checked in a process of their own, turned into lines."""

"""The intake of files and batches: stores them, checks them in a separate process, splits them into lines."""

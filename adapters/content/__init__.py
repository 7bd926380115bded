"""Check and normalise adapter files before anything relies on them.

Runs without PyTorch in a separate process (`adapters.check_process`).
"""

"""Checks of adapter files as bytes, before anything relies on them.

Runs without PyTorch in a process of its own (`adapters.check_process`).
"""

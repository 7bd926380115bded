"""What an adapter's files may be: judged as bytes, before anything relies on them.

Runs without PyTorch in a process of its own (`adapters.check_process`).
"""

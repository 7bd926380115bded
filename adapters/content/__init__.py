"""What an adapter's files may be, and what is made of them: judged as bytes, without PyTorch, before anything relies on
them. Runs in a process of its own (`adapters.check_process`).
"""

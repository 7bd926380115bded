"""LoRA on a CPU: PyTorch's products (`products.py`), and an optional C kernel beside them (`kernel.py`).

`kernel.load` gives what this machine can run. Both are tested alike, and answer alike.
"""

"""LoRA on a CPU with PyTorch's matrix products (`products.py`) and an optional C kernel (`kernel.py`).

`kernel.load` returns what this machine can run. Both pass the same tests.
"""

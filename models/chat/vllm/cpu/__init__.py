"""LoRA on a CPU: PyTorch's products (`products.py`), and an optional C kernel beside them (`compiled.py`).

`lora.load` gives what this machine can run. Both are tested alike, and answer alike.
"""

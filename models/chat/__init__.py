"""The chat engine: vLLM behind `models.protocol.ChatEngine`, called in this process without a port.

`engine.py` is the whole of it; the other files are its parts. What touches vLLM's private side lies in `vllm/`.
"""

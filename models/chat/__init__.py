"""The chat engine: vLLM behind `models.protocol.ChatEngine`, called in this process without a port.

`engine.py` composes the other files. All uses of vLLM's private parts are in `vllm/`.
"""

"""The starter reranker: a small cross-encoder cut from all-MiniLM-L6-v2 and fine-tuned on generated pairs.

`prepare` makes the data and the cut model, `train` fine-tunes it, `evaluate` measures the shipped weights.
"""

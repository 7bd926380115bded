"""The starter reranker: a small cross-encoder, shrunk from all-MiniLM-L6-v2 and fine-tuned on generated pairs.

`prepare` makes the data and the embedding model to shrink, `train` makes and fine-tunes the reranker, `evaluate`
measures the shipped weights.
"""

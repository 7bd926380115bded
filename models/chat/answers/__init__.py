"""Adapt vLLM's answers to the vendors' specifications.

Content from clients and models stays byte for byte. Answers of Messages and Responses contain objects from clients and
models, so they are changed field by field (`shapes.py`). Answers of Chat Completions contain none, so name-value pairs
are replaced in the text. `fitting.py` picks what an answer needs by its path.
"""

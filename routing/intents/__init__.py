"""Intents of a text: classifiers trained in seconds, answering in under 1 ms.

head.py       pieces of letters and words as hashed features, a linear head over them, and its calibration
spelling.py   typing errors, corrected to words of the examples and generated for training
kinds.py      which kinds of models there are
model.py      two heads, with and without an embedding; as a file: safetensors and JSON, identified by its digest
training.py   from examples to a model; the only part that needs scikit-learn
measures.py   accuracy, out-of-scope recall, calibration error, thresholds
report.py     these as text and as a picture
"""

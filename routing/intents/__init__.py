"""Intents of a text: classifiers that train in seconds and answer in under 1 ms.

head.py        letter and word n-grams as hashed features, a linear head over them, and its calibration
spelling.py    corrects typing errors to words of the examples, and generates errors for training
kinds.py       the kinds of models
model.py       two heads, with and without an embedding; stored as safetensors with JSON, identified by its digest
acceptance.py  predicts which targets are good enough for a text
training.py    trains a model from examples; the only part that needs scikit-learn
measures.py    accuracy, out-of-scope recall, calibration error, thresholds
report.py      measures as text and as a picture
"""

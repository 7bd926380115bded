"""Scripts that make the starter models. They are not installed; `make starter` runs them.

To run them by hand: `PYTHONPATH=starter-training python -m starter_training --help`.
"""

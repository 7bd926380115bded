"""Scripts that make the starter models; they are not installed. `make starter` runs them.

By hand, with this folder's parent on the path: `PYTHONPATH=starter-training python -m starter_training --help`.
"""

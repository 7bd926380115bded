"""Use cases that change which models there are: add, edit, remove, export, and reading the recipe folders again.

`ModelSet` is the one writer of that; everything that it is made of is pure or in `launch`.
"""

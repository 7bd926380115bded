"""Use cases that change which models there are: add, edit, remove, reload.

`ModelSet` is the one writer of that; everything that it is made of is pure or in `launch`.
"""

"""Use cases that change the set of models: add, edit, remove, reload.

`ModelSet` is its only writer; the parts it uses are pure or in `launch`.
"""

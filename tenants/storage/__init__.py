"""The tables of teams and keys, and how they came to be.

tables.py      as they are now
migrations/    the steps to them; a step is never changed after a release, the next one is added
opening.py     where the database is, opened and brought up to date
"""

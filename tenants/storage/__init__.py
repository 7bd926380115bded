"""The tables of teams, keys and the ledger, and their migrations.

tables.py      as they are now
migrations/    the steps to them; a step is never changed after a release, the next one is added
opening.py     where the database is, opened and brought up to date
"""

"""The tables of files, batches and lines, and how they came to be.

tables.py      as they are now
migrations/    the steps to them; a step is never changed after a release, the next one is added
opening.py     their place in the ledger's database, brought up to date
"""

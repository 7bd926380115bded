"""The tables of teams, keys and the ledger, and their migrations.

tables.py      the current tables
migrations/    the steps that create them. A released step never changes; add a new one instead
opening.py     locates and opens the database, and migrates it
"""

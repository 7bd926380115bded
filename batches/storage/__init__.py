"""The tables of files, batches and lines, and their migrations.

tables.py    the current tables
queries.py   queries that several tables share
migrations/  the steps that create them. A released step never changes; add a new one instead
opening.py   creates and migrates the tables in the ledger's database
"""

"""Bytes of uploaded files, in the data directory or, where gateways share a PostgreSQL, in pieces in a table.

A file's row is written after its bytes, so that no client sees a file without them; bytes without a row are removed
at the next start.
"""

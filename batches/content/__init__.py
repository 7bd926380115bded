"""The bytes of uploaded files: in the data directory or, if gateways share a PostgreSQL database, in a table.

A file's row is written after its bytes, so that no client sees a file without them. Bytes without a row are removed at
the next start.
"""

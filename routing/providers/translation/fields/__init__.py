"""What becomes of each field of a request that is translated: a table for each dialect, and how one is read by it."""

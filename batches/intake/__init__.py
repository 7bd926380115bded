"""How files and batches come in: stored, checked in a process of their own, turned into lines."""

"""Long runs against the ledger: `python -m tests.faults.ledger.sums`."""

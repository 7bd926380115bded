"""Long runs against the ledger: `python -m tests.faults.ledger.sums`, and `.kills` on real engines."""

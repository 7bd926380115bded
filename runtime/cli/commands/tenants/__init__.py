"""Teams, keys and the ledger, managed in a data directory without a server."""

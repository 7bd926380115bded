"""Who may use a server, and what was used: teams, their keys, the ledger. They need no server."""

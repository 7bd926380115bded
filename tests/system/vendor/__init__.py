"""Every kind of answer against the vendors' own schemas, strictly: what their clients may count on, ours can."""

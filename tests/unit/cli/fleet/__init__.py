"""`roundhouse fleet`, and what keeps a server from joining one."""

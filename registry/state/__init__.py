"""What outlives a restart: adapters, versions, aliases, measured figures. SQLite, behind one writer."""

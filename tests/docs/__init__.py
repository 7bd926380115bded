"""The documentation's examples are run against the real server, and its generated tables are checked."""

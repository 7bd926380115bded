"""The ground floor of the registry."""

"""Nodes' reports and a fleet's policies, without servers and networks."""

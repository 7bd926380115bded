"""Routers over HTTP: their endpoints, what explains a decision, and what answers say of it."""

"""Requests from a front to nodes whose engines are scripts: real TLS, real reports, real relay."""

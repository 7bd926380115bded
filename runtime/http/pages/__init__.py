"""What a browser is shown, without a network: what this server is, and the reference of its API."""

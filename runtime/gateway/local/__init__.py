"""The backend of this machine's models."""

"""Batches beside the same requests by HTTP clients, and what they cost everybody else."""

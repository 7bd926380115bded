"""Which model is in memory, and which one leaves for another."""

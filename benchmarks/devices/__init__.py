"""Several replicas of one model on several devices."""

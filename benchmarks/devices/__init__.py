"""Several replicas of one model, and what one device costs since there may be several."""

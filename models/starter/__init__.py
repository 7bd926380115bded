"""The small models that ship: `pack/` holds weights, cards and samples. `starter-training/` has what makes them."""

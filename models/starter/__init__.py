"""The small models that ship in `pack/`; `starter-training/` makes them."""

"""LoRA adapters as files: checked, normalised, stored by digest, combined, merged."""

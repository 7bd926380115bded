"""Commands that watch a server: what it does now, and how one request went."""

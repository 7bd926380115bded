"""The pages, found by their folders: PAGE in each says what it shows to whom."""

"""The pages, found by their folders: `page.py` says what each shows to whom."""

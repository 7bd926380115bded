"""The pages: one folder each, found by it. `page.py` says what it shows, and to whom (`console.host.Page`)."""

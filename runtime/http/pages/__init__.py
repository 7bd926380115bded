"""Pages for browsers, without a network: home, console, API reference."""

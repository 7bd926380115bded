"""The checks of grammars before they reach the engine."""

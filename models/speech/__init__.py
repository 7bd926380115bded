"""Speech-to-text by faster-whisper: recordings into windows, windows into words. HTTP formats are not here."""

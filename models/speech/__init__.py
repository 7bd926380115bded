"""Speech-to-text by faster-whisper: recordings, windows, words. No HTTP formats."""

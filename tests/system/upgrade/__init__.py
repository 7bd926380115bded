"""Data directories outlive their server: backup, restore, and directories of older versions."""

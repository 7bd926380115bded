"""`roundhouse fleet`: several servers as one."""

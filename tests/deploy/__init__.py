"""The files of deploy/: checked by their own programs if those are installed, otherwise parsed here."""

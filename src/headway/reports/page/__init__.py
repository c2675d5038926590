"""The page of a run: `files` and `history` read a folder, `build` makes the records of the page, `html` writes it."""

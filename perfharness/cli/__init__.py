"""One file a verb; `main` lists them."""

"""What can be put under load: one file a kind. `TARGETS` in `find` says which text means which."""

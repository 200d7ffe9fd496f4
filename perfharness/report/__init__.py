"""Results to files and to the terminal."""

"""Views: results as blocks."""

"""Sends requests at the moments that a profile says, on threads or on an event loop."""

"""Nsight Systems: which there are and what they can do, their command lines, and traces from what they leave."""

"""Batches and their stages: which ranges they are, their numbers, statistics, throughput, start-up."""

"""Batches and stages: finding them, numbers, statistics, throughput, start-up."""

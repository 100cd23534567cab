"""Bridges to queues that people run already; each needs its extra, and nothing here is imported without being asked for."""

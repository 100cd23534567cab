"""Runs cut short at every event and every commit, and real processes killed there (R18, scenario 60)."""

"""The parts of `perdure.testing.simulation`."""

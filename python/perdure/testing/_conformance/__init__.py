"""The parts of `perdure.testing.conformance`: reading rows, running them, comparing, counting."""

"""What ships for testing: the contract suite for stores, and the runner of recorded conformance files."""

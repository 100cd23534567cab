"""The scenarios of the contract, one named test each."""

"""Workers, and the loop that kills them."""

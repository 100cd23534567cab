"""The drive itself: its effects answered by hand, and every interleaving forced."""

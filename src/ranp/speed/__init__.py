"""What makes a network fast on the machine at hand, by measurement."""

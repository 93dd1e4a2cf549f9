"""Trainings of one's own: networks at a budget, trained a little or whole, kept in a store."""

"""The user's own trainings: networks at a budget, trained in part or whole, kept in a store."""

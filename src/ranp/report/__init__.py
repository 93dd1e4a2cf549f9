"""What people look at: terminal tables, figures, pages. Works on plain values only."""

"""Terminal tables, figures and pages. Works on plain values only."""

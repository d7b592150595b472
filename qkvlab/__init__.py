"""Which of the query, key and value projections does attention need? A course and a laboratory."""

__version__ = "0.1.0"

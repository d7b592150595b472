"""Transformers whose query, key and value projections may be learned, tied or absent (torch)."""

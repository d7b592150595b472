"""Exact statements about attention in numpy float64; no torch, so that it also runs in a browser."""

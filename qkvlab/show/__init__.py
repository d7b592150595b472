"""Figures, widgets and live training behind a page."""

"""Side-by-side measurements: `python -m bench.text`, ... each prints one table. See bench/README.md."""

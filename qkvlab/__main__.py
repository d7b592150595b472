"""`python -m qkvlab`, where the script `qkvlab` is not on the path."""

from qkvlab.cli import main

main(prog_name="qkvlab")

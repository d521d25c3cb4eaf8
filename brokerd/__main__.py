"""`python -m brokerd` is the command `brokerd`."""

from brokerd.cli import script

script()

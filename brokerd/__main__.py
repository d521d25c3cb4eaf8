"""`python -m brokerd` runs the command `brokerd`."""

import sys

from brokerd.cli import main

sys.exit(main())

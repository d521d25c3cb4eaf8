"""`python -m brokerd` is the command `brokerd`."""

import sys

from brokerd.cli import main

sys.exit(main())

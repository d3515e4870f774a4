"""`python -m app`: the `ingot` command without its installed script."""

import sys

from app.cli import main

sys.exit(main())

"""`python -m quantize`: the `quantize` command without its console script."""

import sys

from quantize.cli import main

sys.exit(main())

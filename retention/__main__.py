"""`python -m retention`: the command line of `cli`."""

import sys

from retention.cli import main

sys.exit(main())

"""`python -m myxtts COMMAND …` is `myxtts COMMAND …`."""

import sys

from myxtts.commands.main import main

if __name__ == "__main__":
    sys.exit(main())

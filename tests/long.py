"""What only `make test-long` runs."""

import os
import unittest

LONG = bool(os.environ.get("TEST_LONG"))
long = unittest.skipUnless(LONG, "takes long: make test-long")

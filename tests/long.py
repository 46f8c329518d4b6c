"""A decorator for slow tests, which only `make test-long` runs."""

import os
import unittest

long = unittest.skipUnless(os.environ.get("TEST_LONG"), "takes long: make test-long")

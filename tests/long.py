"""Proofs that take many seconds each: `make test-long` runs them, too."""

import os
import unittest

long = unittest.skipUnless(os.environ.get("TEST_LONG"), "takes long: make test-long")

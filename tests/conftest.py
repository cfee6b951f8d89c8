"""For all tests."""

import sys

# pyspark takes a main module without a file for a doctest run and ends the process when it is imported; Great
# Expectations imports it, and the workers of pytest-xdist have such a main module.
if not hasattr(sys.modules["__main__"], "__file__"):
    sys.modules["__main__"].__file__ = __file__

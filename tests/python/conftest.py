"""What holds for all tests."""

import os

# Where it is set, Python writes a line and its end apart, and lines of ranks that share an output run into each other.
os.environ.pop("PYTHONUNBUFFERED", None)

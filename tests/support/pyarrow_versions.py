"""Marks for tests of features that older versions of pyarrow lack."""

import pyarrow as pa
import pytest

PYARROW = int(pa.__version__.partition(".")[0])

has_null_text = pytest.mark.skipif(PYARROW < 26, reason="pyarrow 26 added CSV's null_value")

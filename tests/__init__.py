"""Tests of twopc and its plugins."""

import pytest

pytest.register_assert_rewrite("twopc.testing.contract", "twopc.testing.log_store")  # so that failures show values

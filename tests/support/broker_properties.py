"""Properties of brokers that are started in more than one place."""

WITHOUT_TIMEOUT = {"transaction.two.phase.commit.enable": True, "unstable.api.versions.enable": True}
"""Grants transactions without a time-out to whom it is asked by (KIP-939)."""

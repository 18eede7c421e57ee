"""Properties of brokers that several places start."""

WITHOUT_TIMEOUT = {"transaction.two.phase.commit.enable": True, "unstable.api.versions.enable": True}
"""Grant transactions without a timeout to clients that ask for them (KIP-939)."""

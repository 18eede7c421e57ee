"""Kafka's protocol: connections, requests, and what the answers mean."""

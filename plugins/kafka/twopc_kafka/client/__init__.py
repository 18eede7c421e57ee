"""Kafka's protocol, over kafka-python's connections.

================  ==========================================================================================
module            content
================  ==========================================================================================
``requests``      construction of every request
``kafka_python``  all private names of kafka-python: connections that tolerate silent brokers, cached per process
``control``       requests that describe, list and end transactions: commit, recovery, health checks
``leaders``       requests to the leaders of partitions, over a control connection
``cluster``       requests that a task sends before it writes, over the tasks' own connections
``retry``         repetition of a request until the brokers accept it
``tokens``        tokens for SASL OAUTHBEARER, of a provider or an endpoint
``oidc``          tokens from an issuer's endpoint
================  ==========================================================================================

``twopc_kafka.answers`` interprets the responses.
"""

"""Kafka's protocol, over kafka-python's connections.

==============  ====================================================================================
module          content
==============  ====================================================================================
``requests``    construction of every request
``connection``  connections that tolerate silent brokers, cached per process and cluster
``control``     requests that describe, list and end transactions: commit, recovery, health checks
``leaders``     requests to the leaders of partitions, over a control connection
``cluster``     requests that a task sends before it writes, over the tasks' own connections
``retry``       repetition of a request until the brokers accept it
``tokens``      tokens for SASL OAUTHBEARER
==============  ====================================================================================

``twopc_kafka.answers`` interprets the responses.
"""

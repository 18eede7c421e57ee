"""Kafka's protocol, over kafka-python's connections.

==============  ====================================================================================
module          content
==============  ====================================================================================
``requests``    every request, built
``connection``  connections that survive silent brokers; a process's own, by cluster
``control``     questions about transactions, and their end: the commit path, recovery, health checks
``leaders``     questions to the leaders of partitions, over a control connection
``cluster``     what a task asks before it writes, over connections of the tasks
``retry``       repeat a request until it is accepted
``tokens``      OAUTHBEARER
==============  ====================================================================================

The meaning of answers is in ``twopc_kafka.answers``.
"""

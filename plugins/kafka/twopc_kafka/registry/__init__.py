"""Values in the format of a schema registry: a magic byte, the schema's id, and the value as Avro, JSON or Protobuf.

The driver asks the registry when a column is built. Spark's own functions encode and decode, so no record passes
through Python. Avro and Protobuf need Spark's package ``spark-avro`` or ``spark-protobuf``, in Spark's version.

    client = SchemaRegistryClient({"url": "http://registry:8081", "timeout": 10})
    value = registry.to_avro(orders, F.struct("id", "amount"), subject="orders-value", registry=client)
    orders.select("key", value.alias("value"))

Without ``timeout`` (seconds), the client waits forever for a registry that hangs. Use one client for all batches: it
caches schemas, so a call sends one or two requests.
"""

from twopc_kafka.registry.avro import from_avro, to_avro
from twopc_kafka.registry.connect import connect_json
from twopc_kafka.registry.json_schema import to_json_schema
from twopc_kafka.registry.protobuf import from_protobuf, to_protobuf

__all__ = ["connect_json", "from_avro", "from_protobuf", "to_avro", "to_json_schema", "to_protobuf"]

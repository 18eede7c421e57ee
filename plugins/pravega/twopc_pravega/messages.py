"""The controller's messages, made from ``controller.proto`` when the module is imported.

Code that protoc generates works only with the versions of protobuf that are near its own. These classes work with all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import resources
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_MESSAGE = re.compile(r"^message (\w+) \{ (.*) \}$", re.MULTILINE)
_FIELD = re.compile(r"(repeated )?(\w+) (\w+) = (\d+);")
_PACKAGE = "twopc.pravega"

_Field = descriptor_pb2.FieldDescriptorProto


def load(proto: str) -> Mapping[str, Any]:
    """Return the message classes of a text in the form of ``controller.proto``, by their names."""
    file = descriptor_pb2.FileDescriptorProto(name="controller.proto", package=_PACKAGE, syntax="proto3")
    for name, fields in _MESSAGE.findall(proto):
        message = file.message_type.add(name=name)
        for repeated, kind, field_name, number in _FIELD.findall(fields):
            field = message.field.add(name=field_name, number=int(number))
            field.label = _Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL
            if kind[0].isupper():
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = pool.FindFileByName(file.name).message_types_by_name
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()}


PROTO = resources.files("twopc_pravega").joinpath("controller.proto").read_text("utf-8")

MESSAGES = load(PROTO)

"""The Protobuf schemas of a registry, compiled, with their messages and the messages' indexes."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import confluent_kafka.schema_registry.protobuf  # noqa: F401  # its imports fill the pool with the built-in files
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from twopc.errors import ConfigurationError

_COMPILE_TIMEOUT_S = 60
_BUILT_IN = re.compile(r"(?:google|confluent)/[\w/]+\.proto")
_FIXED = {"fixed32", "fixed64"}


def _add(files: dict[str, Any], name: str, text: str) -> None:
    """Add a file, after the built-in files that it imports."""
    found = _decoded(text)
    for each in found.dependency if found else _BUILT_IN.findall(text):
        _add_built_in(files, each)
    if not found:
        found = FileDescriptorProto.FromString(_compile(text, _serialized(files.values())))
    found.name = name
    files[name] = found


def _decoded(text: str) -> Any:
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, ValueError):
        return None  # it is a source: sources have characters that base64 lacks


def _add_built_in(files: dict[str, Any], name: str) -> None:
    if name in files or not _BUILT_IN.fullmatch(name):
        return
    try:
        file = Default().FindFileByName(name)
    except KeyError:
        return  # the compiler reports it
    for each in file.dependencies:
        _add_built_in(files, each.name)
    files[name] = FileDescriptorProto.FromString(file.serialized_pb)


def _serialized(files: Any) -> bytes:
    return bytes(FileDescriptorSet(file=files).SerializeToString(deterministic=True))


@lru_cache(maxsize=1000)  # Columns are built for each batch, and a compiler process for each would take long.
def _compile(text: str, imported: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        own = f"twopc_{hashlib.sha256(text.encode()).hexdigest()}.proto"  # no import has this name
        source, known, compiled = (Path(folder, name) for name in (own, "known", "compiled"))
        source.write_text(text, encoding="utf-8")
        known.write_bytes(imported)
        options = [f"--descriptor_set_in={known}", f"--proto_path={folder}", f"--descriptor_set_out={compiled}"]
        command = [sys.executable, "-m", "grpc_tools.protoc", *options, source.name]
        done = subprocess.run(command, capture_output=True, timeout=_COMPILE_TIMEOUT_S, check=False)  # noqa: S603
        if done.returncode:
            told = done.stderr.decode(errors="replace").replace(f"{folder}/", "").replace(own, "schema.proto")
            raise ConfigurationError(told.strip())
        [file] = FileDescriptorSet.FromString(compiled.read_bytes()).file
        return bytes(file.SerializeToString())


@dataclass(frozen=True)
class Message:
    """A message with the files that define it."""

    descriptor: Any
    files: tuple[Any, ...]

    @classmethod
    def chosen(cls, texts: Mapping[str, str], name: str | None) -> Message:
        """Return a message of the last file.

        Args:
            texts: the name by which others import a file → its source, or its descriptor in base64, as Confluent's
                clients for Python and .NET register it. Each file follows the files that it imports. Built-in files may
                be left out.
            name: the message's full name, such as ``shop.Order.Line``. None for the file's first message.

        Raises:
            ConfigurationError: a file does not compile, or the last file does not define the message.
        """
        files: dict[str, Any] = {}
        for file_name, text in texts.items():
            _add(files, file_name, text)
        pool = DescriptorPool()
        try:
            for each in files.values():
                pool.Add(each)
            file = pool.FindFileByName([*files][-1])
        except (KeyError, TypeError) as error:
            raise ConfigurationError(str(error)) from None
        messages = [*_messages(file.message_types_by_name.values())]
        for each in messages:
            if name is None or each.full_name == name:
                return cls(each, tuple(files.values()))
        known = ", ".join(each.full_name for each in messages)
        raise ConfigurationError(f"it has no message {name!r}, only these: {known}" if name else "it has no message")

    @property
    def indexes(self) -> list[int]:
        """The message's place in its file: the index of the outermost message, then that of each nested one."""
        found, inner = [], self.descriptor
        while (outer := inner.containing_type) is not None:
            names = [each.name for each in outer.nested_types]
            index = names.index(inner.name)
            groups = {each.message_type for each in outer.fields if each.type == each.TYPE_GROUP}
            if any(each.GetOptions().map_entry or each in groups for each in outer.nested_types[:index]):
                # Java clients count only messages. Python clients also count the entries of maps, and groups.
                raise ConfigurationError(
                    f"{inner.full_name} follows a map field or a group: move it before, as clients disagree"
                )
            found.append(index)
            inner = outer
        found.append([*self.descriptor.file.message_types_by_name].index(inner.name))
        return found[::-1]

    @property
    def for_spark(self) -> tuple[str, bytes]:
        """The name and the files with which Spark finds the message. Spark finds no nested messages, so one of the
        files contains a copy of the message at the top level."""
        own = self.files[-1]
        copy = FileDescriptorProto(
            name="twopc_copy.proto", package="twopc_copy", syntax=own.syntax, options=own.options
        )
        copy.dependency.extend(each.name for each in self.files)
        if own.HasField("edition"):
            copy.edition = own.edition
        self.descriptor.CopyToProto(copy.message_type.add())
        return f"twopc_copy.{self.descriptor.name}", _serialized([copy, *self.files])


def _messages(descriptors: Any) -> Iterator[Any]:
    for each in descriptors:
        if not each.GetOptions().map_entry:
            yield each
            yield from _messages(each.nested_types)


def framings(indexes: Sequence[int]) -> list[bytes]:
    """Return the bytes that may stand between a schema's id and a message: the number of its indexes and the indexes,
    as zigzag varints.

    A file's first message also has a shorter form, which most clients write. It is returned first.
    """
    whole = b"".join(_varint(2 * each) for each in (len(indexes), *indexes))
    return [b"\0", whole] if [*indexes] == [0] else [whole]


def _varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + _varint(rest) if rest else bytes([low])


def differences(writer: Any, reader: Any, within: tuple[tuple[Any, Any], ...] = ()) -> Iterator[str]:
    """Yield the fields of ``writer`` that ``reader`` would read as other values.

    Fields are compared by number. A field that only one message defines is not a difference.
    """
    if (writer, reader) in within:
        return
    for read in reader.fields:
        written = writer.fields_by_number.get(read.number)
        if written is None:
            continue
        name = read.full_name
        if shown(written) != shown(read):
            yield f"{name}: {shown(written)} would be read as {shown(read)}"
        elif (written.has_presence, written.default_value) != (read.has_presence, read.default_value):
            yield f"{name}: a field that is not set would be read as another value"
        elif read.enum_type and not _names(written.enum_type).items() <= _names(read.enum_type).items():
            yield f"{name}: {read.enum_type.full_name} has other values"
        elif read.message_type:
            yield from differences(written.message_type, read.message_type, (*within, (writer, reader)))
    for oneof in reader.oneofs:
        written = [
            writer.fields_by_number[each.number] for each in oneof.fields if each.number in writer.fields_by_number
        ]
        theirs = {each.containing_oneof for each in written}
        if len(written) > 1 and (len(theirs) > 1 or None in theirs):
            yield f"{oneof.full_name}: of two fields that are both set, one would be read"


def _names(enum: Any) -> dict[int, str]:
    """Return the name that each number is read as: the first name, if a number has several."""
    return {each.number: each.name for each in reversed([*enum.values])}


def unreadable(message: Any, within: tuple[Any, ...] = ()) -> Iterator[str]:
    """Yield the fields that Spark would not read exactly: it reads ``fixed32`` as signed, and drops empty messages."""
    for each in message.fields:
        if each.message_type in (message, *within):
            yield f"{each.full_name}: a message within itself is not supported"
        elif shown(each).split()[-1] in _FIXED or (each.message_type and not each.message_type.fields):
            yield f"{each.full_name}: Protobuf's {shown(each)} is not supported"
        elif each.message_type:
            yield from unreadable(each.message_type, (*within, message))


def shown(place: Any) -> str:
    """Return a field's type as it is written in a schema."""
    whole = place.message_type or place.enum_type
    if place.message_type and place.message_type.GetOptions().map_entry:
        return "map<{}, {}>".format(*(shown(each) for each in place.message_type.fields))
    kind = whole.full_name if whole else FieldDescriptorProto.Type.Name(place.type).removeprefix("TYPE_").lower()
    return f"repeated {kind}" if place.is_repeated else str(kind)

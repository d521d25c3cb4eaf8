"""The .proto files: every declaration has a comment, and the method table matches the service."""

from __future__ import annotations

import importlib

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FileDescriptor

from brokerd.wire.methods import FETCH, PRODUCE, SERVICE, STREAMS, UNARY
from brokerd.wire.v1 import broker_pb2
from tests.support.contract import declarations, proto_files

BROKER = broker_pb2.DESCRIPTOR.services_by_name["Broker"]


def descriptor_of(file: str) -> FileDescriptor:
    """The compiled form of one .proto file."""
    module = importlib.import_module(f"brokerd.wire.v1.{file.removesuffix('.proto')}_pb2")
    descriptor: FileDescriptor = module.DESCRIPTOR
    return descriptor


def names_in(file: FileDescriptor) -> set[str]:
    """Names of all declarations of a file, qualified within the file."""
    names: set[str] = set()

    def walk_enum(owner: str, enum: EnumDescriptor) -> None:
        names.add(f"{owner}{enum.name}")
        names.update(f"{owner}{enum.name}.{value.name}" for value in enum.values)

    def walk(owner: str, message: Descriptor) -> None:
        here = f"{owner}{message.name}."
        names.add(here[:-1])
        names.update(here + field.name for field in message.fields)
        for nested in message.nested_types:
            if not nested.GetOptions().map_entry:
                walk(here, nested)
        for enum in message.enum_types:
            walk_enum(here, enum)

    for message in file.message_types_by_name.values():
        walk("", message)
    for enum in file.enum_types_by_name.values():
        walk_enum("", enum)
    for service in file.services_by_name.values():
        names.add(service.name)
        names.update(f"{service.name}.{method.name}" for method in service.methods)
    return names


@pytest.mark.parametrize("file", proto_files())
def test_everything_in_the_contract_has_a_comment(file: str) -> None:
    found = declarations(file)
    # The text is parsed by regular expressions; the compiled file shows that no declaration was missed.
    assert {f"{d.owner}.{d.name}".lstrip(".") for d in found} == names_in(descriptor_of(file))
    bare = [f"proto/brokerd/wire/v1/{d.file}:{d.line} {d.name}" for d in found if len(d.comment) < 8]
    assert not bare, "without a comment of its own: " + ", ".join(bare)


def test_the_table_of_methods_is_the_service() -> None:
    assert BROKER.full_name == SERVICE
    for method in BROKER.methods:
        if method.name in UNARY:
            assert not method.client_streaming
            assert not method.server_streaming
            assert UNARY[method.name].path == f"/{SERVICE}/{method.name}"


def test_the_streams_are_streams_both_ways() -> None:
    assert {PRODUCE, FETCH} == {f"/{SERVICE}/{name}" for name in STREAMS}
    for name in STREAMS:
        method = BROKER.methods_by_name[name]
        assert method.client_streaming
        assert method.server_streaming


@pytest.mark.parametrize("file", proto_files())
def test_numbers_and_names_follow_the_style_guide(file: str) -> None:
    descriptor = descriptor_of(file)
    assert descriptor.package == "brokerd.wire.v1"
    for enum in descriptor.enum_types_by_name.values():
        assert enum.values_by_number[0] is not None
        prefix = "".join(f"_{c}" if c.isupper() else c.upper() for c in enum.name).lstrip("_")
        assert all(value.name.startswith(f"{prefix}_") for value in enum.values)

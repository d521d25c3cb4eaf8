from brokerd.wire.v1 import fetch_pb2 as _fetch_pb2
from brokerd.wire.v1 import metadata_pb2 as _metadata_pb2
from brokerd.wire.v1 import offsets_pb2 as _offsets_pb2
from brokerd.wire.v1 import produce_pb2 as _produce_pb2
from brokerd.wire.v1 import topics_pb2 as _topics_pb2
from brokerd.wire.v1 import transaction_pb2 as _transaction_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

"""Goal: messages arrive whole and in order, each with its socket, and errors are raised with their own class."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from brokerd.errors import BrokerdError, ConfigError, UnknownTopicOrPartitionError
from brokerd.testing.channel import Channel, error_head, pair, raise_error

Ends = tuple[Channel, Channel]


@pytest.fixture
def ends() -> Iterator[Ends]:
    """Both ends of a channel."""
    one, theirs = pair()
    other = Channel(theirs)
    yield one, other
    one.close()
    other.close()


def test_messages_arrive_in_order_and_whole(ends: Ends) -> None:
    one, other = ends
    body = bytes(range(256)) * 20_000

    def send() -> None:
        one.send({"n": 1})
        one.send({"text": "é" * 100_000}, body)

    sender = threading.Thread(target=send)
    sender.start()
    assert other.receive().head == {"n": 1}
    message = other.receive()
    sender.join()
    assert message.head == {"text": "é" * 100_000}
    assert message.body == body
    assert message.passed is None


def test_a_socket_travels_with_its_message(ends: Ends) -> None:
    one, other = ends
    left, right = socket.socketpair()
    one.send({"n": 1})
    one.send({"n": 2}, b"body", passed=right)
    right.close()
    assert other.receive().passed is None
    passed = other.receive().passed
    assert passed is not None
    passed.sendall(b"hello")
    assert left.recv(5) == b"hello"
    passed.close()
    left.close()


def test_the_other_sides_end_is_an_end_of_file(ends: Ends) -> None:
    one, other = ends
    one.socket.sendall(b"\0\0")  # the start of a message
    one.close()
    with pytest.raises(EOFError):
        other.receive()


def test_an_end_waits_for_the_other_side(ends: Ends) -> None:
    one, other = ends
    other.send({"late": True})
    waiter = threading.Thread(target=lambda: one.end(60))
    waiter.start()
    with pytest.raises(EOFError):
        other.receive()
    assert waiter.is_alive()
    other.close()
    waiter.join()


def test_an_end_waits_no_longer_than_it_is_told(ends: Ends) -> None:
    one, _ = ends
    one.end(0.01)
    assert one.socket.fileno() < 0


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (UnknownTopicOrPartitionError("there is no topic 't'"), UnknownTopicOrPartitionError, "there is no topic 't'"),
        (ConfigError("wrong"), ConfigError, "wrong"),
        (TypeError("wrong type"), TypeError, "wrong type"),
        (KeyError("k"), BrokerdError, "KeyError: 'k'"),
    ],
)
def test_an_error_is_raised_as_what_it_was(error: Exception, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        raise_error(error_head(error))
    assert type(caught.value) is kind
    assert str(caught.value) == text


def test_an_unknown_error_is_no_code() -> None:
    with pytest.raises(BrokerdError, match="boom"):
        raise_error({"error": "SystemExit", "message": "boom"})
    raise_error({"fine": True})

"""Principals for tests of authorization, and their tokens."""

from __future__ import annotations

import textwrap

from brokerd.server.security.tokens import hash_token

TOKENS = {
    "reader": "reader-Zq8rV2mKx0pLw7TnB5cYd3HsJf6Ga1Ue",
    "writer": "writer-Kd3mPq9sXv1bNc7RtYw5zHj2LgFa8Ue0",
    "boss": "boss-Wm4xQe8rTy2uIo6pAs0dFg3hJk7lZc5vB",
    "outsider": "outsider-Bn1mVc3xZl5kJh7gFd9sAp0oIu2yTr",
}
UNKNOWN_TOKEN = "nobody-Hq6wEr4tYu8iOp2aSd0fGh5jKl1zXc9v"

AUTH_FILE = textwrap.dedent(
    f"""
    [principals.reader]
    tokens = ["{hash_token(TOKENS["reader"])}"]
    certificates = ["reader.example"]
    read = ["events-*", "clicks"]
    groups = ["own*", "placed", "its-own", "of *", "nobody's"]

    [principals.writer]
    tokens = ["{hash_token(TOKENS["writer"])}", "{hash_token("second-" + TOKENS["writer"])}"]
    write = ["events-*"]

    [principals.boss]
    tokens = ["{hash_token(TOKENS["boss"])}"]
    read = ["*"]
    write = ["*"]
    admin = ["*"]

    [principals.outsider]
    tokens = ["{hash_token(TOKENS["outsider"])}"]
    read = ["elsewhere"]
    groups = ["theirs-*"]
    write = ["elsewhere"]
    admin = ["elsewhere"]
    """
)

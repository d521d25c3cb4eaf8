"""`brokerd hash-token`: what the broker's auth file holds of a token. Why it is hashed so: brokerd/server/security/tokens.py."""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from brokerd.cli.parser import Subparsers
from brokerd.errors import ConfigError
from brokerd.server.security.tokens import check_token, generate_token, hash_token

_EPILOG = """\
A token is never an argument: other users of the machine could see it. The hash goes into the broker's auth.file:

  [principals.etl]
  tokens = ["sha256:..."]
  write = ["events-*"]

examples:
  brokerd hash-token --generate etl.token      # a new token into a file, its hash on standard output
  brokerd hash-token < etl.token               # the hash of a token that exists
  brokerd topics list -X auth.token.file=etl.token
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "hash-token",
        help="hash a token for the broker's auth file",
        description="Reads a token from standard input, or makes one, and prints what the broker's auth.file holds of it.",
        epilog=_EPILOG,
    )
    parser.add_argument("--generate", metavar="FILE", help="make a token and write it to FILE, new and readable by you alone")


def run(args: argparse.Namespace) -> int:
    """Prints the hash. Raises ConfigError."""
    token = _generated(args.generate) if args.generate is not None else _read()
    check_token(token)
    print(hash_token(token))
    return 0


def _generated(path: str) -> str:
    token = generate_token()
    try:
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(token + "\n")
    except OSError as error:
        raise ConfigError(f"cannot write the new file {path}: {error.strerror}") from None
    return token


def _read() -> str:
    if sys.stdin.isatty():
        return getpass.getpass("token: ").strip()
    return sys.stdin.read().strip()

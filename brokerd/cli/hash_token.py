"""`brokerd hash-token`: the hash of a token, for the broker's auth file. brokerd/server/security/tokens.py says why this hash."""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from brokerd.cli.parser import Subparsers
from brokerd.errors import ConfigError
from brokerd.server.security.tokens import check_token, generate_token, hash_token

_EPILOG = """\
A token is never passed as an argument: other users of the machine could see it. The hash goes into the broker's auth.file:

  [principals.etl]
  tokens = ["sha256:..."]
  write = ["events-*"]

examples:
  brokerd hash-token --generate etl.token      # writes a new token to a file, its hash to standard output
  brokerd hash-token < etl.token               # the hash of an existing token
  brokerd topics list -X auth.token.file=etl.token
"""


def add_parser(subparsers: Subparsers) -> None:
    """Declares the command."""
    parser = subparsers.add_parser(
        "hash-token",
        help="hash a token for the broker's auth file",
        description="Reads a token from standard input, or generates one, and prints its hash for the broker's auth.file.",
        epilog=_EPILOG,
    )
    parser.add_argument(
        "--generate", metavar="FILE", help="generate a token and write it to FILE, which must not exist; only you can read it"
    )


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

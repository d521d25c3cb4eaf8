"""subscribePattern: translates Java's regular expressions, which Spark's Kafka connector takes, to Python's.

The two agree almost everywhere. Differences are translated here or refused by name, so that no pattern matches other topics than
it would with the Kafka connector:

    translated   \\Q...\\E quoting, (?<name>...) and \\k<name>, \\z, \\p{...} of letters and digits, punctuation in classes
    refused      classes within classes and &&, other \\p{...}, back references of two digits, octal numbers, \\b{g}, the
                 flags d, u, U and x

Possessive quantifiers and atomic groups are the same in both. As in the connector, a pattern matches if it is found anywhere in a
topic's name: `events` also matches `more-events`, `^events$` does not.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from brokerd.errors import ConfigError

# \p{...}: its replacement inside a character class. Topic names are ASCII, so ASCII suffices.
_PROPERTIES = {
    **dict.fromkeys(("L", "IsL", "Alpha", "IsAlphabetic", "IsLetter"), "A-Za-z"),
    **dict.fromkeys(("Lu", "IsLu", "Upper", "IsUppercase", "javaUpperCase"), "A-Z"),
    **dict.fromkeys(("Ll", "IsLl", "Lower", "IsLowercase", "javaLowerCase"), "a-z"),
    **dict.fromkeys(("N", "Nd", "IsN", "IsNd", "Digit", "IsDigit"), "0-9"),
    "Alnum": "A-Za-z0-9",
    "XDigit": "0-9A-Fa-f",
    "Punct": r"!-/:-@\[-`{-~",
    "ASCII": r"\x00-\x7f",
}
_FLAGS = re.compile(r"\(\?([a-zA-Z]*)(?:-([a-zA-Z]+))?[:)]")
_FOREIGN_FLAGS = "dxuUaL"
_NAMED_GROUP = re.compile(r"\(\?<([a-zA-Z][a-zA-Z0-9]*)>")
_NAMED_REFERENCE = re.compile(r"\\k<([a-zA-Z][a-zA-Z0-9]*)>")
_PROPERTY = re.compile(r"\\([pP])(?:\{(\w+)\}|([A-Z]))")


def topic_matcher(pattern: str) -> Callable[[str], bool]:
    """A predicate on topic names. Raises ConfigError naming the construct that cannot be translated."""
    try:
        compiled = re.compile(_to_python(pattern), re.ASCII)
    except (re.error, OverflowError, RecursionError) as error:
        raise ConfigError(f"subscribePattern '{pattern:.200}' is not a regular expression: {error}") from None
    return lambda name: compiled.search(name) is not None


def _to_python(pattern: str) -> str:
    """The same pattern in Python's syntax."""
    parts: list[str] = []
    at = 0
    while at < len(pattern):
        character = pattern[at]
        if character == "\\":
            part, at = _escape(pattern, at, is_in_class=False)
        elif character == "[":
            part, at = _character_class(pattern, at)
        elif character == "(":
            part, at = _group(pattern, at)
        else:
            part, at = character, at + 1
        parts.append(part)
    return "".join(parts)


def _group(pattern: str, at: int) -> tuple[str, int]:
    flags = _FLAGS.match(pattern, at)
    foreign = [flag for flag in (flags[1] + (flags[2] or "") if flags else "") if flag in _FOREIGN_FLAGS]
    if foreign:
        raise _refused(pattern, f"the flag '{foreign[0]}'", "leave it out: topic names are ASCII and contain no blanks")
    named = _NAMED_GROUP.match(pattern, at)
    return (f"(?P<{named[1]}>", named.end()) if named else ("(", at + 1)


def _escape(pattern: str, at: int, *, is_in_class: bool) -> tuple[str, int]:
    """The translation of the escape at `at`, and the position after it."""
    following = pattern[at + 1 : at + 2]
    if following == "Q":
        end = pattern.find("\\E", at + 2)
        end = len(pattern) if end < 0 else end
        return re.escape(pattern[at + 2 : end]), end + 2
    if following in ("p", "P"):
        return _property(pattern, at, is_in_class=is_in_class)
    reference = _NAMED_REFERENCE.match(pattern, at)
    if reference:
        return f"(?P={reference[1]})", reference.end()
    if following == "z":
        return r"\Z", at + 2
    if following == "b" and pattern.startswith("{", at + 2):
        raise _refused(pattern, r"the boundary \b{...}", r"write \b")
    if following == "0":
        raise _refused(pattern, "a character by its octal number", r"write it by its hexadecimal number, such as \x41")
    if following.isdecimal() and pattern[at + 2 : at + 3].isdecimal():
        raise _refused(pattern, "a back reference of two digits", "name the group: (?<name>...) and \\k<name>")
    return pattern[at : at + 2], at + 2


def _property(pattern: str, at: int, *, is_in_class: bool) -> tuple[str, int]:
    found = _PROPERTY.match(pattern, at)
    characters = _PROPERTIES.get(found[2] or found[3]) if found else None
    if found is None or characters is None:
        raise _refused(pattern, f"the property {pattern[at : at + 12]}", "write the characters, such as [A-Za-z]")
    is_negated = found[1] == "P"
    if is_in_class and is_negated:
        raise _refused(pattern, f"the property {found[0]} within a class", "write the characters, such as [^A-Za-z]")
    if is_in_class:
        return characters, found.end()
    return f"[{'^' if is_negated else ''}{characters}]", found.end()


def _character_class(pattern: str, at: int) -> tuple[str, int]:
    """A character class, up to its closing bracket. Characters that Python may one day use for set operations are escaped."""
    parts = ["["]
    at += 1
    if pattern.startswith("^", at):
        parts.append("^")
        at += 1
    is_first = True
    while at < len(pattern):
        character = pattern[at]
        if character == "]" and not is_first:
            return "".join([*parts, "]"]), at + 1
        if character == "[":
            raise _refused(pattern, "a class within a class", "write one class with all characters")
        if pattern.startswith("--", at):
            raise _refused(pattern, "two hyphens in a class", r"write one of them as \x2d")
        if pattern.startswith("&&", at):
            raise _refused(pattern, "the intersection && of classes", "write one class with the characters that are left")
        if character == "\\":
            part, at = _escape(pattern, at, is_in_class=True)
        else:
            part, at = (f"\\{character}" if character in "&~|" else character), at + 1
        parts.append(part)
        is_first = False
    return "".join(parts), at


def _refused(pattern: str, what: str, instead: str) -> ConfigError:
    return ConfigError(
        f"subscribePattern '{pattern:.200}' uses {what}, which is Java syntax with another meaning, or none, in Python: {instead}"
    )

"""Patterns that Java and brokerd's source match alike, with the topics of TOPICS that they match. The Spark tests verify this
against a real JVM."""

from __future__ import annotations

TOPICS = ("Events", "events", "events-eu", "events.eu", "more-events", "orders_2024", "a.b", "axb", "a", "aab", "abab", "x1-1", "K")

_EVENTS = ("events", "events-eu", "events.eu", "more-events")
SAME_AS_JAVA: dict[str, tuple[str, ...]] = {
    "events": _EVENTS,
    "^events$": ("events",),
    "(?i)events": ("Events", *_EVENTS),
    "(?i:E)vents$": ("Events", "events", "more-events"),
    "(?i)\u212a": (),  # the Kelvin sign equals k only in Unicode case folding
    "a.b": ("a.b", "axb", "aab"),
    r"\Qa.b\E": ("a.b",),
    r"^\Qa.\E[b]": ("a.b",),
    r"\Qevents.eu": ("events.eu",),
    r"^[\Q.-\Ea-z]+$": ("events", "events-eu", "events.eu", "more-events", "a.b", "axb", "a", "aab", "abab"),
    r"^\p{Lower}+$": ("events", "axb", "a", "aab", "abab"),
    r"^\p{L}+$": ("Events", "events", "axb", "a", "aab", "abab", "K"),
    r"^\pL+$": ("Events", "events", "axb", "a", "aab", "abab", "K"),
    r"^\P{Lower}": ("Events", "K"),
    r"\p{Punct}\p{Digit}": ("orders_2024", "x1-1"),
    r"^[\p{Upper}x]": ("Events", "x1-1", "K"),
    r"\p{IsAlphabetic}\d": ("x1-1",),
    "(?<first>a)\\k<first>": ("aab",),
    "^(?<two>ab)\\k<two>$": ("abab",),
    r"(a)\1": ("aab",),
    "^a*+b": ("aab", "abab"),
    "^a*+ab": (),
    "^(?>a+)ab": (),
    "^a++b$": ("aab",),
    r"\d\z": ("orders_2024", "x1-1"),
    r"\d\Z": ("orders_2024", "x1-1"),
    r"\Aevents": ("events", "events-eu", "events.eu"),
    r"\beu\b": ("events-eu", "events.eu"),
    "events(?!-)": ("events", "events.eu", "more-events"),
    "(?<=more-)events": ("more-events",),
    "^[^a-z]": ("Events", "K"),
    "[]1]-": ("x1-1",),
    "^[a|b~]{1,2}$": ("a",),
    "[.&_]": ("events.eu", "orders_2024", "a.b"),
    r"^\w+$": ("Events", "events", "orders_2024", "axb", "a", "aab", "abab", "K"),
    r"\x61\u0062": ("aab", "abab"),
    "events|orders": (*_EVENTS, "orders_2024"),
    "": TOPICS,
}

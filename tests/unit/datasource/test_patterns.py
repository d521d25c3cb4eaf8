"""subscribePattern takes Java's syntax: a pattern matches the same topics as in Java, or is refused by name."""

from __future__ import annotations

import pytest

from brokerd.datasource.patterns import topic_matcher
from brokerd.errors import ConfigError
from tests.support.java_patterns import SAME_AS_JAVA, TOPICS


@pytest.mark.parametrize("pattern", SAME_AS_JAVA)
def test_patterns_match_the_topics_that_java_would_match(pattern: str) -> None:
    matches = topic_matcher(pattern)
    assert [topic for topic in TOPICS if matches(topic)] == list(SAME_AS_JAVA[pattern])


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("[a-z&&[^bc]]+", "the intersection &&"),
        ("[a[bc]]", "a class within a class"),
        ("[!--a]", "two hyphens in a class"),
        (r"\p{IsGreek}", r"the property \\p\{IsGreek\}"),
        (r"\p{javaMirrored}", r"the property"),
        (r"[\P{Lower}]", r"the property \\P\{Lower\} within a class"),
        (r"\b{g}a", r"the boundary \\b"),
        (r"(a)\11", "a back reference of two digits"),
        (r"\0101", "a character by its octal number"),
        ("(?x)a b", "the flag 'x'"),
        ("(?U)a", "the flag 'U'"),
        ("(?d:a)", "the flag 'd'"),
    ],
)
def test_what_means_something_else_in_python_is_refused_by_name(pattern: str, what: str) -> None:
    with pytest.raises(ConfigError, match=f"subscribePattern '.*' uses {what}.*, which is Java syntax"):
        topic_matcher(pattern)


@pytest.mark.parametrize(
    "pattern", ["a(", "[a", "*a", r"\h", r"\Ra", r"\G", "a{2}{3}", "(?<=a+)b", r"\k<no>", "a" * 10 + "\\", r"\E"]
)
def test_what_python_cannot_compile_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="is not a regular expression"):
        topic_matcher(pattern)

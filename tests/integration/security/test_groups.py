"""Only principals with rights to a group's name may use it; the boss, who administers every topic, may read and change all."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from brokerd.cli import main
from brokerd.errors import ErrorCode
from brokerd.ids import TopicIdPartition
from brokerd.wire.v1 import offsets_pb2
from tests.integration.security.conftest import ClientAs, with_token
from tests.support.daemon import running_daemon
from tests.support.identities import AUTH_FILE, TOKENS
from tests.support.raw_client import RawClient, code_of

NOT_YOURS = ErrorCode.GROUP_AUTHORIZATION_FAILED
OK = ErrorCode.NONE
NO_SUCH_ID = ErrorCode.UNKNOWN_TOPIC_ID


def entries(tps: Sequence[TopicIdPartition]) -> list[dict[str, Any]]:
    return [{"topic_id": tp.topic_id, "partition": tp.partition} for tp in tps]


def commit(client: RawClient, group_id: str, tps: Sequence[TopicIdPartition], **fields: Any) -> tuple[ErrorCode, list[ErrorCode]]:
    """Commits offset 0 in some partitions; returns the codes of the response and of its results."""
    asked = offsets_pb2.CommitGroupOffsetsRequest(group_id=group_id, offsets=entries(tps), **fields)
    response = client.call("CommitGroupOffsets", asked)
    return code_of(response), [code_of(result) for result in response.results]


def fetch(client: RawClient, group_id: str, tps: Sequence[TopicIdPartition] = ()) -> tuple[ErrorCode, list[int]]:
    """The code of the response, and the offsets."""
    response = client.call("FetchGroupOffsets", offsets_pb2.FetchGroupOffsetsRequest(group_id=group_id, partitions=entries(tps)))
    return code_of(response), [result.offset for result in response.results]


def listed(client: RawClient, prefix: str) -> list[tuple[str, str]]:
    """The groups that the client may list, with their owners."""
    response = client.call("ListGroups", offsets_pb2.ListGroupsRequest(prefix=prefix))
    return [(group.group_id, group.principal) for group in response.groups]


def test_a_group_is_for_those_who_may_use_its_name_and_the_boss(client_as: ClientAs, caplog: pytest.LogCaptureFixture) -> None:
    boss, reader, outsider = (client_as(TOKENS[name]) for name in ("boss", "reader", "outsider"))
    (events,) = boss.create_topic("events-grouped")
    (elsewhere,) = boss.create_topic("elsewhere")
    assert commit(reader, "owned", [events]) == (OK, [OK])
    assert listed(outsider, "owned") == []
    assert listed(reader, "owned") == listed(boss, "owned") == [("owned", "reader")]
    assert commit(boss, "owned", [elsewhere]) == (OK, [OK])
    assert listed(reader, "owned") == [("owned", "reader")], "an operator's commit does not take it"
    assert fetch(boss, "owned") == (OK, [0, 0])
    assert fetch(reader, "owned") == (OK, [0]), "of a topic that it may not read, it is told nothing"
    described = reader.call("DescribeGroup", offsets_pb2.DescribeGroupRequest(group_id="owned"))
    assert [one.topic for one in described.partitions] == ["events-grouped"]
    with caplog.at_level(logging.INFO, "brokerd.audit"):
        assert boss.call("DeleteGroup", offsets_pb2.DeleteGroupRequest(group_id="owned")).deleted_offsets == 2
    assert "deleted 2 offsets of group 'owned'" in caplog.text
    assert commit(outsider, "theirs-1", [elsewhere]) == (OK, [OK])


def test_no_answer_tells_which_groups_of_others_there_are_and_nobody_takes_their_names(
    client_as: ClientAs, caplog: pytest.LogCaptureFixture
) -> None:
    boss, reader, outsider = (client_as(TOKENS[name]) for name in ("boss", "reader", "outsider"))
    (events,) = boss.create_topic("events-of-a-secret-group")
    assert commit(reader, "own-secret", [events]) == (OK, [OK])
    asked: list[Callable[[str], Any]] = [
        lambda name: outsider.call("CommitGroupOffsets", offsets_pb2.CommitGroupOffsetsRequest(group_id=name)),
        lambda name: outsider.call("FetchGroupOffsets", offsets_pb2.FetchGroupOffsetsRequest(group_id=name)),
        lambda name: outsider.call("DescribeGroup", offsets_pb2.DescribeGroupRequest(group_id=name)),
        lambda name: outsider.call("DeleteGroup", offsets_pb2.DeleteGroupRequest(group_id=name)),
    ]
    with caplog.at_level(logging.WARNING, "brokerd.audit"):
        for ask in asked:
            known, unknown = ask("own-secret"), ask("own-nobody")
            assert code_of(known) is code_of(unknown) is NOT_YOURS
            assert known.error.message.replace("own-secret", "own-nobody") == unknown.error.message
    assert "outsider refused: principal 'outsider' may not use group 'own-secret'" in caplog.text
    assert listed(boss, "own-nobody") == []


def test_each_partition_is_judged_by_itself_and_answered_in_its_place(client_as: ClientAs) -> None:
    boss, reader = client_as(TOKENS["boss"]), client_as(TOKENS["reader"])
    (events,) = boss.create_topic("events-placed")
    (hidden,) = boss.create_topic("hidden-placed")
    missing = events._replace(partition=9)
    asked = [hidden, events, missing]
    code, codes = commit(reader, "placed", asked)
    assert code is OK
    assert codes == [NO_SUCH_ID, OK, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert fetch(reader, "placed", asked) == (OK, [-1, 0, -1])
    assert fetch(reader, "placed", [hidden]) == (OK, [-1])
    assert commit(reader, "placed", [hidden]) == (OK, [NO_SUCH_ID])
    boss_s = [hidden, events]
    assert commit(boss, "the boss's", [events]) == (OK, [OK])
    assert commit(reader, "the boss's", boss_s) == (NOT_YOURS, [])
    assert fetch(reader, "the boss's", boss_s) == (NOT_YOURS, [])
    assert commit(reader, "the boss's", []) == (NOT_YOURS, [])


def test_a_dry_run_of_a_reset_refuses_what_the_reset_would(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "token").write_text(TOKENS["writer"])
    auth_file = tmp_path / "auth.toml"
    auth_file.write_text(AUTH_FILE.replace('write = ["events-*"]', 'write = ["events-*"]\nread = ["events-read"]\ngroups = ["g"]'))
    printed = []
    with running_daemon(tmp_path / "data", auth_file=str(auth_file)) as daemon:
        boss = with_token(daemon.address, TOKENS["boss"])
        for name in ("events-read", "events-written"):
            boss.create_topic(name)
        boss.channel.close()
        words = ["groups", "reset", "g", "--topic", "events-read", "--topic", "events-written", "--to-latest", "--json"]
        for flags in (["--dry-run"], []):
            assert main([*words, *flags, "-b", daemon.address, "-X", f"auth.token.file={tmp_path / 'token'}"]) == 1
            out, err = capsys.readouterr()
            printed.append([one["topic"] for one in json.loads(out)])
            assert "events-written" in err
    assert printed == [["events-read"]] * 2

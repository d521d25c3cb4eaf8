"""A transactional id belongs to the principal that used it first; the boss, who administers every topic, may abort all."""

from __future__ import annotations

from brokerd.errors import ErrorCode
from brokerd.wire.v1 import transaction_pb2
from tests.integration.security.conftest import ClientAs
from tests.support.identities import TOKENS
from tests.support.raw_client import RawClient, code_of
from tests.support.raw_transactions import Txn, read

NOT_YOURS = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def listed(client: RawClient) -> list[str]:
    """The transactional ids that the client may list."""
    response = client.call("ListTransactions", transaction_pb2.ListTransactionsRequest())
    return [one.transactional_id for one in response.transactions]


def test_an_id_is_its_first_users_alone(client_as: ClientAs) -> None:
    boss, writer, outsider = (client_as(TOKENS[name]) for name in ("boss", "writer", "outsider"))
    (tp,) = boss.create_topic("events-owned")
    own = Txn(writer, name="writers")
    own.member().write(tp, b"row")
    theirs = Txn(outsider, name="writers")
    assert code_of(theirs.init()) is NOT_YOURS
    for decision in (transaction_pb2.TRANSACTION_DECISION_COMMIT, transaction_pb2.TRANSACTION_DECISION_ABORT):
        assert code_of(theirs.end(own.members, decision=decision)) is NOT_YOURS
    beat = transaction_pb2.HeartbeatRequest(
        transactional_id="writers", execution_id=own.execution_id, member_id=own.members[0].member_id
    )
    assert code_of(outsider.call("Heartbeat", beat)) is NOT_YOURS
    assert listed(outsider) == []
    assert listed(writer) == listed(boss) == ["writers"]
    describe = transaction_pb2.DescribeTransactionRequest(transactional_id="writers")
    abort = transaction_pb2.AbortTransactionRequest(transactional_id="writers")
    for method, request in (("DescribeTransaction", describe), ("AbortTransaction", abort)):
        answer = outsider.call(method, request)
        missing = type(request)(transactional_id="nobodys")
        assert answer.error.message == outsider.call(method, missing).error.message.replace("nobodys", "writers")
    find = transaction_pb2.FindHangingTransactionsRequest()
    assert not outsider.call("FindHangingTransactions", find).transactions
    assert [one.transactional_id for one in boss.call("FindHangingTransactions", find).transactions] == ["writers"]
    own.commit()
    assert read(boss, tp) == [b"row"]
    again = Txn(writer, name="writers", version=1)
    again.member().write(tp, b"void")
    assert boss.call("AbortTransaction", abort).aborted_members == 1
    assert read(boss, tp) == [b"row"]


def test_an_id_is_handed_over_by_forgetting_it(client_as: ClientAs) -> None:
    boss, writer, outsider = (client_as(TOKENS[name]) for name in ("boss", "writer", "outsider"))
    (tp,) = boss.create_topic("events-handed-over")
    own = Txn(writer, name="handed-over", version=3)
    own.member().write(tp, b"row")
    forget = transaction_pb2.ForgetTransactionalIdRequest(transactional_id="handed-over")
    missing = transaction_pb2.ForgetTransactionalIdRequest(transactional_id="nobodys")
    strangers = outsider.call("ForgetTransactionalId", forget).error.message
    assert strangers == outsider.call("ForgetTransactionalId", missing).error.message.replace("nobodys", "handed-over")
    assert code_of(writer.call("ForgetTransactionalId", forget)) is NOT_YOURS, "an operator's decision"
    open_one = boss.call("ForgetTransactionalId", forget)
    assert code_of(open_one) is ErrorCode.INVALID_TXN_STATE
    assert "while members are open (1): abort them first" in open_one.error.message
    own.commit()
    assert code_of(Txn(boss, name="handed-over", version=4).init()) is NOT_YOURS
    forgotten = boss.call("ForgetTransactionalId", forget)
    assert (code_of(forgotten), forgotten.last_version, forgotten.principal) == (ErrorCode.NONE, 3, "writer")
    assert "handed-over" not in listed(boss)
    theirs = Txn(boss, name="handed-over", version=4)
    theirs.member().write(tp, b"next")
    theirs.commit()
    assert read(boss, tp) == [b"row", b"next"]
    assert "handed-over" not in listed(writer)


def test_nobody_writes_as_anothers_member(client_as: ClientAs) -> None:
    boss, writer = client_as(TOKENS["boss"]), client_as(TOKENS["writer"])
    (tp,) = boss.create_topic("events-members")
    own = Txn(writer, name="writers-2")
    member = own.member()
    result = boss.producer().produce(tp, member.batch(tp, [b"forged"]))
    assert code_of(result) is ErrorCode.UNKNOWN_PRODUCER_ID
    member.write(tp, b"row")
    own.commit()
    assert read(boss, tp) == [b"row"]

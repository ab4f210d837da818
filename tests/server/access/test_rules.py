"""The rules by which the authorizer decides."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
from server_kit.access import ALICE, ALLOW, DENY, HOST, Kind, Op, entry

from ottla.cluster.security.acls import Acl, AclFilter
from ottla.protocol.acls import AclOperation, AclPattern, AclResource
from ottla.server.security.access import Access
from ottla.server.security.authorizer import Authorizer, parse_super_users


def decides(*entries: Acl, **options: Any) -> Callable[..., bool]:
    authorizer = Authorizer(**options)
    authorizer.change((), entries)

    def ask(
        operation: AclOperation,
        name: str = "orders",
        kind: AclResource = Kind.TOPIC,
        principal: str = ALICE,
        host: str = HOST,
    ) -> bool:
        return authorizer.allows(principal, host, operation, kind, name)

    return ask


def test_nothing_is_allowed_without_an_entry() -> None:
    assert not decides()(Op.READ)
    assert decides(allow_if_none=True)(Op.READ)
    # With an entry for somebody else, everybody needs one.
    others = decides(entry(Op.READ, principal="User:bob"), allow_if_none=True)
    assert not others(Op.READ)
    assert others(Op.READ, "elsewhere")


def test_super_users_may_do_everything() -> None:
    ask = decides(
        entry(Op.ALL, permission=DENY, principal="User:*"), super_users={"User:admin", ALICE}
    )
    assert ask(Op.WRITE)
    assert not ask(Op.WRITE, principal="User:bob")
    assert parse_super_users(" User:CN=a,O=b ;User:c;") == {"User:CN=a,O=b", "User:c"}


def test_a_denial_wins() -> None:
    ask = decides(entry(Op.ALL, "*"), entry(Op.WRITE, "ord", Kind.TOPIC, DENY, AclPattern.PREFIXED))
    assert ask(Op.READ)
    assert not ask(Op.WRITE)
    assert ask(Op.WRITE, "other")


def test_patterns() -> None:
    ask = decides(entry(Op.READ, "ord", pattern=AclPattern.PREFIXED), entry(Op.WRITE, "*"))
    assert ask(Op.READ)
    assert ask(Op.READ, "ord")
    assert not ask(Op.READ, "or")
    assert ask(Op.WRITE, "anything")
    # A star is a star only in a literal entry, and kinds are apart.
    assert not decides(entry(Op.READ, "*", pattern=AclPattern.PREFIXED))(Op.READ)
    assert not decides(entry(Op.READ))(Op.READ, kind=Kind.GROUP)


def test_long_names_are_decided_at_once_and_not_remembered() -> None:
    asked: list[str] = []

    class Prefixes(dict[str, dict[Acl, str]]):
        def get(self, name: str, default: Any = None) -> Any:
            asked.append(name)
            return super().get(name, default)

    authorizer = Authorizer()
    authorizer.change(
        (),
        [entry(Op.READ, name, pattern=AclPattern.PREFIXED) for name in ("or", "ord", "zz")],
    )
    entries = authorizer._entries[Kind.TOPIC]
    entries.prefixed = Prefixes(entries.prefixed)
    long = "order" + "s" * 30_000
    assert authorizer.allows(ALICE, HOST, Op.READ, Kind.TOPIC, long)
    assert sorted(asked) == ["or", "ord"]
    assert not authorizer._remembered
    assert authorizer.allows(ALICE, HOST, Op.READ, Kind.TOPIC, "orders")
    assert authorizer._remembered


def test_principals_and_hosts() -> None:
    assert decides(entry(Op.READ, principal="User:*"))(Op.READ, principal="User:ANONYMOUS")
    assert not decides(entry(Op.READ))(Op.READ, principal="User:bob")
    here = decides(entry(Op.READ, host=HOST))
    assert here(Op.READ)
    assert here(Op.READ, host=f"::ffff:{HOST}")
    assert not here(Op.READ, host="10.0.0.2")


def test_an_address_of_ipv6_is_the_same_however_it_is_written() -> None:
    """Kafka's tools write it as Java does; a denial must not miss by that."""
    for written in ("0:0:0:0:0:0:0:1", "::1", "0::0:1", "0000:0:0::0001"):
        denied = decides(entry(Op.READ), entry(Op.READ, host=written, permission=DENY))
        assert not denied(Op.READ, host="::1"), written
        assert denied(Op.READ, host="::2")
    mapped = decides(entry(Op.READ), entry(Op.READ, host="::FFFF:a00:1", permission=DENY))
    assert not mapped(Op.READ, host="10.0.0.1")
    # What is no address is nobody's.
    assert not decides(entry(Op.READ, host="no:address"))(Op.READ, host="::1")
    # Two of them that say the same are two entries.
    authorizer = Authorizer()
    twice = [entry(Op.READ, host=each) for each in ("::1", "0:0:0:0:0:0:0:1")]
    authorizer.change((), twice)
    authorizer.change(twice[:1], ())
    assert authorizer.allows(ALICE, "::1", Op.READ, Kind.TOPIC, "orders")
    authorizer.change(twice[1:], ())
    assert not authorizer.allows(ALICE, "::1", Op.READ, Kind.TOPIC, "orders")


def test_what_implies_what() -> None:
    for operation in (Op.READ, Op.WRITE, Op.DELETE, Op.ALTER, Op.ALL):
        assert decides(entry(operation))(Op.DESCRIBE)
        # A denial of it denies nothing else.
        denied = decides(entry(operation, permission=DENY), entry(Op.DESCRIBE))
        assert denied(Op.DESCRIBE) is (operation is not Op.ALL)
    for operation in (Op.CREATE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS, Op.CLUSTER_ACTION):
        assert not decides(entry(operation))(Op.DESCRIBE)
    assert decides(entry(Op.ALTER_CONFIGS))(Op.DESCRIBE_CONFIGS)
    assert not decides(entry(Op.ALTER))(Op.DESCRIBE_CONFIGS)


def test_changes_count_at_once() -> None:
    authorizer = Authorizer()
    assert not authorizer.allows(ALICE, HOST, Op.READ, Kind.TOPIC, "orders")
    authorizer.change([], [entry(Op.READ)])
    assert authorizer.allows(ALICE, HOST, Op.READ, Kind.TOPIC, "orders")
    authorizer.change([entry(Op.READ)], [])
    assert not authorizer.allows(ALICE, HOST, Op.READ, Kind.TOPIC, "orders")


def test_changes_leave_what_the_entries_alone_would() -> None:
    """Whatever came and went before: literal ones and prefixes, of the same names and lengths."""
    random = Random(7)
    possible = [
        entry(operation, name, permission=permission, pattern=pattern)
        for operation in (Op.READ, Op.WRITE)
        for name in ("orders", "order", "or", "others", "*")
        for permission in (ALLOW, DENY)
        for pattern in (AclPattern.LITERAL, AclPattern.PREFIXED)
    ]
    changed, held = Authorizer(), set[Acl]()
    for _ in range(200):
        some = set(random.sample(possible, random.randrange(8)))
        gone = {each for each in some if each in held}
        # An entry that is made again is heard of as gone and as new.
        again = {each for each in gone if random.random() < 0.2}
        changed.change(gone, (some - gone) | again)
        held = (held | some) - (gone - again)
        fresh = Authorizer()
        fresh.change((), held)
        for name in ("orders", "order", "orderly", "oracle", "else"):
            for operation in (Op.READ, Op.WRITE, Op.DESCRIBE):
                asked = (ALICE, HOST, operation, Kind.TOPIC, name)
                assert changed.allows(*asked) == fresh.allows(*asked)
        assert changed.allows_some(ALICE, HOST, Op.READ, Kind.TOPIC) == fresh.allows_some(
            ALICE, HOST, Op.READ, Kind.TOPIC
        )


def test_whether_there_is_something_to_write() -> None:
    def some(*entries: Acl) -> bool:
        authorizer = Authorizer()
        authorizer.change((), entries)
        return authorizer.allows_some(ALICE, HOST, Op.WRITE, Kind.TOPIC)

    prefixed = AclPattern.PREFIXED
    assert not some()
    assert not some(entry(Op.READ))
    assert some(entry(Op.WRITE))
    assert not some(entry(Op.WRITE), entry(Op.WRITE, permission=DENY))
    assert not some(entry(Op.WRITE), entry(Op.ALL, "*", permission=DENY))
    assert not some(entry(Op.WRITE), entry(Op.WRITE, "or", permission=DENY, pattern=prefixed))
    assert some(entry(Op.WRITE, "*"), entry(Op.WRITE, permission=DENY))
    assert some(
        entry(Op.WRITE, "or", pattern=prefixed),
        entry(Op.WRITE, "orders", permission=DENY, pattern=prefixed),
    )
    assert not some(
        entry(Op.WRITE, "orders", pattern=prefixed),
        entry(Op.WRITE, "or", permission=DENY, pattern=prefixed),
    )


def test_filters() -> None:
    literal, prefixed, star = (
        entry(Op.READ, "orders"),
        entry(Op.READ, "ord", pattern=AclPattern.PREFIXED),
        entry(Op.READ, "*"),
    )

    def taken(**fields: Any) -> list[Acl]:
        return [each for each in (literal, prefixed, star) if AclFilter(**fields).takes(each)]

    assert taken() == [literal, prefixed, star]
    assert taken(name="orders") == [literal]
    assert taken(name="orders", pattern=AclPattern.MATCH) == [literal, prefixed, star]
    assert taken(name="other", pattern=AclPattern.MATCH) == [star]
    assert taken(pattern=AclPattern.PREFIXED) == [prefixed]
    assert taken(principal="User:bob") == []
    assert taken(operation=Op.WRITE) == []
    assert taken(permission=DENY) == []
    assert taken(resource=Kind.GROUP) == []


def test_a_flood_of_denials_hides_no_other(caplog: pytest.LogCaptureFixture) -> None:
    peer: Any = SimpleNamespace(
        principal="User:alice", host=HOST, address=f"{HOST}:1", client_id="tool"
    )
    access = Access(Authorizer(), peer)
    for _ in range(20):
        assert not access.may(Op.DESCRIBE, Kind.TOPIC, "orders")
    assert not access.cluster(Op.ALTER)
    assert (
        "denied: principal=User:alice peer=10.0.0.1:1 client='tool' "
        "operation=ALTER resource=CLUSTER:'kafka-cluster'"
    ) in caplog.messages

"""The numbers that requests about access control lists carry."""

from __future__ import annotations

import enum


class AclResource(enum.IntEnum):
    """What an ACL is about; the number is the protocol's."""

    ANY = 1  # in filters only
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class AclPattern(enum.IntEnum):
    """How an ACL's name is meant."""

    ANY = 1  # in filters only: whatever the pattern
    MATCH = 2  # in filters only: all that concern the name
    LITERAL = 3
    PREFIXED = 4


class AclOperation(enum.IntEnum):
    """What an ACL allows or denies."""

    ANY = 1  # in filters only
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class AclPermission(enum.IntEnum):
    """Whether an ACL allows or denies."""

    ANY = 1  # in filters only
    DENY = 2
    ALLOW = 3

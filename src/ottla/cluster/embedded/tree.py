"""The versioned tree in memory: what the embedded store serves reads from. No I/O.

A change is first staged beside the tree, where it can be checked against everything staged before it
and written to disk; only then is it applied, so that a reader never sees what is not durable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ottla.cluster.store import (
    ANY_VERSION,
    PERSISTENT,
    Change,
    ChangeKind,
    Check,
    Conflict,
    Create,
    Delete,
    Node,
    Operation,
    Refusal,
    parent_of,
)

ROOT = Node(b"", 0, 0, 0)


class Tree:
    """All nodes by path. The root always exists."""

    def __init__(self, transaction: int = 0, nodes: Iterable[tuple[str, Node]] = ()) -> None:
        self.transaction = transaction  # number of the last one applied; ≥ `modified` of all nodes
        self.nodes: dict[str, Node] = {"/": ROOT}
        # Names of children; a node without any has no entry. Keys of a dict, to keep it small.
        self._children: dict[str, dict[str, None]] = {}
        for path, node in nodes:
            self._put(path, node)

    def children(self, path: str) -> list[str] | None:
        """Sorted names of the children, None without such a node."""
        if path not in self.nodes:
            return None
        return sorted(self._children.get(path, ()))

    def child_count(self, path: str) -> int:
        """How many children a node has."""
        return len(self._children.get(path, ()))

    def owned_by(self, session: int) -> list[str]:
        """Paths of the ephemeral nodes of a session."""
        return [path for path, node in self.nodes.items() if node.owner == session]

    def apply(self, staged: Staged) -> list[Change]:
        """Makes what was staged true."""
        changes: list[Change] = []
        nodes = self.nodes
        for path, node in staged.nodes.items():
            before = nodes.get(path)
            if node is None:
                if before is not None:
                    self._remove(path)
                    changes.append(Change(path, ChangeKind.DELETED))
                continue
            if before is None:
                changes.append(Change(path, ChangeKind.CREATED))
            elif before.created != node.created:
                changes.append(Change(path, ChangeKind.DELETED))
                changes.append(Change(path, ChangeKind.CREATED))
            else:
                changes.append(Change(path, ChangeKind.SET))
            self._put(path, node)
        self.transaction = staged.transaction
        return changes

    def _put(self, path: str, node: Node) -> None:
        if path not in self.nodes:
            parent, _, name = path.rpartition("/")
            self._children.setdefault(parent or "/", {})[name] = None
        self.nodes[path] = node

    def _remove(self, path: str) -> None:
        del self.nodes[path]
        parent, _, name = path.rpartition("/")
        siblings = self._children[parent or "/"]
        del siblings[name]
        if not siblings:
            del self._children[parent or "/"]


class Staged:
    """Transactions that are checked and not yet applied, on top of a tree that stands still."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self.transaction = tree.transaction
        self.nodes: dict[str, Node | None] = {}  # None: deleted
        self._child_counts: dict[str, int] = {}  # what staging adds to the tree's counts

    def add(self, operations: Sequence[Operation], session: int) -> tuple[int, ...] | Conflict:
        """Stages one transaction whole, and answers with the versions, or leaves all as it was.

        Whether the paths are well-formed has been checked.
        """
        attempt = _Attempt(self, self.transaction + 1, session)
        versions: list[int] = []
        for index, operation in enumerate(operations):
            outcome = attempt.do(operation)
            if isinstance(outcome, Refusal):
                return Conflict(index, outcome)
            versions.append(outcome)
        self.nodes.update(attempt.nodes)
        for path, difference in attempt.child_counts.items():
            self._child_counts[path] = self._child_counts.get(path, 0) + difference
        self.transaction += 1
        return tuple(versions)

    def node(self, path: str) -> Node | None:
        """A node as it will be."""
        if path in self.nodes:
            return self.nodes[path]
        return self._tree.nodes.get(path)

    def child_count(self, path: str) -> int:
        """How many children a node will have."""
        return self._tree.child_count(path) + self._child_counts.get(path, 0)


class _Attempt:
    """One transaction in the making."""

    def __init__(self, staged: Staged, transaction: int, session: int) -> None:
        self._staged = staged
        self._transaction = transaction
        self._session = session
        self.nodes: dict[str, Node | None] = {}
        self.child_counts: dict[str, int] = {}

    def do(self, operation: Operation) -> int | Refusal:
        path = operation.path
        node = self._node(path)
        if isinstance(operation, Create):
            return self._create(operation, node)
        if node is None:
            return Refusal.NO_NODE
        if operation.version not in (ANY_VERSION, node.version):
            return Refusal.BAD_VERSION
        if isinstance(operation, Check):
            return node.version
        if isinstance(operation, Delete):
            return self._delete(path)
        version = node.version + 1
        self.nodes[path] = Node(
            operation.value, version, node.created, self._transaction, node.owner
        )
        return version

    def _create(self, operation: Create, node: Node | None) -> int | Refusal:
        if node is not None:
            return Refusal.NODE_EXISTS
        path = operation.path
        parent_path = parent_of(path)
        parent = self._node(parent_path)
        if parent is None:
            return Refusal.NO_PARENT
        if parent.owner != PERSISTENT:
            return Refusal.PARENT_IS_EPHEMERAL
        owner = self._session if operation.ephemeral else PERSISTENT
        self.nodes[path] = Node(operation.value, 0, self._transaction, self._transaction, owner)
        self.child_counts[parent_path] = self.child_counts.get(parent_path, 0) + 1
        return 0

    def _delete(self, path: str) -> int | Refusal:
        if path == "/" or self._staged.child_count(path) + self.child_counts.get(path, 0):
            return Refusal.NOT_EMPTY
        self.nodes[path] = None
        parent_path = parent_of(path)
        self.child_counts[parent_path] = self.child_counts.get(parent_path, 0) - 1
        return -1

    def _node(self, path: str) -> Node | None:
        if path in self.nodes:
            return self.nodes[path]
        return self._staged.node(path)

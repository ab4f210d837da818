"""Guards of controllers, candidates and followers of the metadata that are broken on purpose."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.cluster import controller as controllers
from ottla.cluster import layout
from ottla.cluster.controller import Controller
from ottla.cluster.decisions import elections
from ottla.cluster.loading import load_image
from ottla.cluster.membership.following import MetadataFollower
from ottla.cluster.membership.membership import Membership
from ottla.cluster.retries import Retries
from ottla.cluster.store import ANY_VERSION, Check, Conflict, Ok, Refusal, Set, Unknown
from simulation_kit.controlled import run_controlled_seed
from simulation_kit.mutations.registry import MUTATIONS, Mutation

Patches = list[tuple[Any, str, Any]]


def mutation(what: str) -> Callable[[Callable[[], Patches]], None]:
    def register(patches: Callable[[], Patches]) -> None:
        name = patches.__name__
        MUTATIONS[name] = Mutation(name, what, patches, run_controlled_seed)

    return register


# Who may write --------------------------------------------------------------------------------------


@mutation("A controller writes whether or not it is still in office")
def offices_are_not_fenced() -> Patches:
    return [(controllers, "Check", lambda path, _version: Check(path, ANY_VERSION))]


@mutation("A controller writes on whatever revision, in office or not")
def write_on_any_revision() -> Patches:
    def unconditional(path: str, value: bytes, version: int = ANY_VERSION) -> Set:
        return Set(path, value, ANY_VERSION if path == layout.REVISION else version)

    return [*_patches_of("offices_are_not_fenced"), (controllers, "Set", unconditional)]


@mutation("A write without an answer is taken for done")
def unknown_is_done() -> Patches:
    async def write(self: Retries, operations: Any, _mark: str, _version: int | None) -> Any:
        answer = await self._store.multi(operations)
        return Ok(()) if isinstance(answer, Unknown) else answer

    return [(Retries, "write", write)]


@mutation("A write without an answer is taken for refused, without a look at the store")
def unknown_is_refused() -> Patches:
    async def write(self: Retries, operations: Any, _mark: str, _version: int | None) -> Any:
        answer = await self._store.multi(operations)
        return Conflict(0, Refusal.BAD_VERSION) if isinstance(answer, Unknown) else answer

    return [(Retries, "write", write)]


@mutation("A controller publishes what it has decided before it is written")
def publish_before_writing() -> Patches:
    original = Controller._write_draft

    async def write_draft(self: Controller, draft: Any) -> bool:
        if draft.is_changed:
            new, delta = draft.finish(draft.base.version)
            for subscriber in tuple(self._subscribers):
                subscriber(self.image, new, delta)
        return await original(self, draft)

    return [(Controller, "_write_draft", write_draft)]


# What they decide -----------------------------------------------------------------------------------


@mutation("The controller elects any replica that is alive")
def controllers_elect_anybody() -> Patches:
    original = elections.elected

    def elected(partition: Any, alive: Any, policy: Any) -> Any:
        return original(partition, alive, policy._replace(unclean=True))

    return [(elections, "elected", elected)]


@mutation(
    "A broker is taken in before what its former life led is settled, where that is two writes"
)
def taken_in_before_settled() -> Patches:
    original = layout.operations_of.steps

    def steps(draft: Any) -> Any:
        operations = yield from original(draft)
        return sorted(operations, key=lambda each: not each.path.startswith(layout.REGISTRATIONS))

    return [(layout.operations_of, "steps", steps)]


# Members --------------------------------------------------------------------------------------------


@mutation("A broker that was fenced while it lived does not register again")
def fenced_for_ever() -> Patches:
    async def register_if_fenced(self: Membership) -> None:
        self._look_again = False

    return [(Membership, "_register_if_fenced", register_if_fenced)]


@mutation("A controller in whose place another stands is not told of it")
def deposed_unknowingly() -> Patches:
    return [(Controller, "office_may_be_lost", lambda _: None)]


@mutation("The broker of a controller that has resigned goes on with its images")
def led_by_the_resigned() -> Patches:
    def resigned(self: Membership) -> None:
        self._vacancy.set()
        self.on_office()

    return [(Membership, "_resigned", resigned)]


# Followers of the metadata --------------------------------------------------------------------------


@mutation("A new session's image is followed although its server may be behind")
def open_without_sync() -> Patches:
    async def open_image(self: MetadataFollower) -> Any:
        image = await load_image(self._store)
        if image is not None:
            await self.take_over(image)
        return image

    return [(MetadataFollower, "open", open_image)]


def _patches_of(name: str) -> Patches:
    return MUTATIONS[name].patches()

"""Settings of the topic of a scene, changed as its users change them."""

from __future__ import annotations

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from cluster_kit.scene import TOPIC, Scene


def set_config(scene: Scene, broker: int, name: str, value: str) -> None:
    """Asks one broker, which passes it on to the controller if it is another."""
    admin = AdminClient({"bootstrap.servers": scene.address(broker), "log_level": 0})
    entry = ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, TOPIC, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)

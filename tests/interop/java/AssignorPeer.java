import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.util.Collection;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.coordinator.group.api.assignor.ConsumerGroupPartitionAssignor;
import org.apache.kafka.coordinator.group.api.assignor.GroupSpec;
import org.apache.kafka.coordinator.group.api.assignor.MemberAssignment;
import org.apache.kafka.coordinator.group.api.assignor.MemberSubscription;
import org.apache.kafka.coordinator.group.api.assignor.SubscribedTopicDescriber;
import org.apache.kafka.coordinator.group.api.assignor.SubscriptionType;
import org.apache.kafka.coordinator.group.assignor.RangeAssignor;
import org.apache.kafka.coordinator.group.assignor.UniformAssignor;

/**
 * Kafka's own assignors, asked with JSON lines.
 *
 * <p>A group: {"topics": {"1": 3}, "members": {"a": {"instance": null, "topics": [1], "assigned":
 * {"1": [0, 2]}}}}; topics are numbers. The answer: {"uniform": {"a": {"1": [0, 1, 2]}}, "range": ...}.
 */
final class AssignorPeer {
    public static void main(String[] arguments) throws Exception {
        Lines.serve(
            request -> {
                JsonObject answer = new JsonObject();
                answer.add("uniform", assign(new UniformAssignor(), request));
                answer.add("range", assign(new RangeAssignor(), request));
                return answer;
            });
    }

    private static JsonObject assign(ConsumerGroupPartitionAssignor assignor, JsonObject group) {
        Group spec = new Group(group.getAsJsonObject("members"));
        JsonObject answer = new JsonObject();
        Map<String, MemberAssignment> members =
            new TreeMap<>(assignor.assign(spec, new Topics(group.getAsJsonObject("topics"))).members());
        members.forEach(
            (member, assignment) -> {
                JsonObject topics = new JsonObject();
                new TreeMap<>(assignment.partitions())
                    .forEach((topic, partitions) -> topics.add(name(topic), array(partitions)));
                answer.add(member, topics);
            });
        return answer;
    }

    private static JsonArray array(Set<Integer> partitions) {
        JsonArray array = new JsonArray();
        new TreeSet<>(partitions).forEach(array::add);
        return array;
    }

    private static Uuid id(String name) {
        return new Uuid(0, Long.parseLong(name));
    }

    private static String name(Uuid id) {
        return Long.toString(id.getLeastSignificantBits());
    }

    private record Subscription(Optional<String> instanceId, Set<Uuid> subscribedTopicIds)
        implements MemberSubscription {
        @Override
        public Optional<String> rackId() {
            return Optional.empty();
        }
    }

    private record Assigned(Map<Uuid, Set<Integer>> partitions) implements MemberAssignment {}

    private static final class Topics implements SubscribedTopicDescriber {
        private final JsonObject topics;

        Topics(JsonObject topics) {
            this.topics = topics;
        }

        @Override
        public int numPartitions(Uuid topic) {
            return topics.has(name(topic)) ? topics.get(name(topic)).getAsInt() : -1;
        }

        @Override
        public Set<String> racksForPartition(Uuid topic, int partition) {
            return Set.of();
        }
    }

    private static final class Group implements GroupSpec {
        private final Map<String, Subscription> subscriptions = new HashMap<>();
        private final Map<String, Assigned> assignments = new HashMap<>();
        private final Map<Uuid, Set<Integer>> owned = new HashMap<>();

        Group(JsonObject members) {
            for (Map.Entry<String, JsonElement> member : members.entrySet()) {
                JsonObject fields = member.getValue().getAsJsonObject();
                JsonElement instance = fields.get("instance");
                Set<Uuid> topics = new HashSet<>();
                fields.getAsJsonArray("topics").forEach(topic -> topics.add(id(topic.getAsString())));
                subscriptions.put(
                    member.getKey(),
                    new Subscription(
                        instance.isJsonNull() ? Optional.empty() : Optional.of(instance.getAsString()),
                        topics));
                Map<Uuid, Set<Integer>> assigned = new HashMap<>();
                for (Map.Entry<String, JsonElement> each :
                    fields.getAsJsonObject("assigned").entrySet()) {
                    Set<Integer> partitions = new HashSet<>();
                    each.getValue().getAsJsonArray().forEach(it -> partitions.add(it.getAsInt()));
                    assigned.put(id(each.getKey()), partitions);
                    owned.computeIfAbsent(id(each.getKey()), __ -> new HashSet<>()).addAll(partitions);
                }
                // An assignor takes a map that it cannot change as a sign that it has to copy it.
                assignments.put(member.getKey(), new Assigned(Collections.unmodifiableMap(assigned)));
            }
        }

        @Override
        public Collection<String> memberIds() {
            return subscriptions.keySet();
        }

        @Override
        public SubscriptionType subscriptionType() {
            return subscriptions.values().stream().map(Subscription::subscribedTopicIds).distinct().count() <= 1
                ? SubscriptionType.HOMOGENEOUS
                : SubscriptionType.HETEROGENEOUS;
        }

        @Override
        public boolean isPartitionAssigned(Uuid topic, int partition) {
            return owned.getOrDefault(topic, Set.of()).contains(partition);
        }

        @Override
        public boolean isPartitionAssignable(Uuid topic, int partition) {
            return true;
        }

        @Override
        public MemberSubscription memberSubscription(String member) {
            return subscriptions.get(member);
        }

        @Override
        public MemberAssignment memberAssignment(String member) {
            return assignments.get(member);
        }
    }
}

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.lang.reflect.Method;
import java.util.Collections;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;

/**
 * Kafka's Java clients from 0.9 to 0.10: producer and consumer, message formats v0 and v1.
 *
 * <p>The earliest place is offset 0 here: with an explicit position these consumers read without
 * asking for a group's offsets. What came later than 0.9 is found by reflection.
 */
public final class OldClientDriver {
    private static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        Lines.serve(OldClientDriver::run);
    }

    private static JsonElement run(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        switch (request.get("command").getAsString()) {
            case "produce":
                return OldProducerDriver.produce(bootstrap, request);
            case "consume":
                return consume(topic, request);
            case "offset_for_time":
                try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
                    TopicPartition place =
                        new TopicPartition(topic, request.get("partition").getAsInt());
                    return new JsonPrimitive(
                        offsetForTime(consumer, place, request.get("time").getAsLong()));
                }
            default:
                throw new IllegalArgumentException("no such command: " + request);
        }
    }

    private static KafkaConsumer<byte[], byte[]> consumer() {
        String deserializer = "org.apache.kafka.common.serialization.ByteArrayDeserializer";
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", "interop-assigned");
        settings.put("key.deserializer", deserializer);
        settings.put("value.deserializer", deserializer);
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", "100");
        settings.put("max.partition.fetch.bytes", "4000000");
        return new KafkaConsumer<>(settings);
    }

    private static long offsetForTime(
        KafkaConsumer<byte[], byte[]> consumer, TopicPartition place, long time) throws Exception {
        Method lookup = KafkaConsumer.class.getMethod("offsetsForTimes", Map.class);
        Map<?, ?> answer =
            (Map<?, ?>) lookup.invoke(consumer, Collections.singletonMap(place, (Long) time));
        Object found = answer.get(place);
        return (Long) found.getClass().getMethod("offset").invoke(found);
    }

    private static JsonElement consume(String topic, JsonObject request) throws Exception {
        TopicPartition place = new TopicPartition(topic, request.get("partition").getAsInt());
        int count = request.get("count").getAsInt();
        JsonObject start = request.getAsJsonObject("start");
        JsonArray found = new JsonArray();
        long deadline = System.nanoTime() + request.get("timeout").getAsLong() * 1_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(Collections.singletonList(place));
            if (start.has("time")) {
                consumer.seek(place, offsetForTime(consumer, place, start.get("time").getAsLong()));
            } else {
                consumer.seek(place, start.has("offset") ? start.get("offset").getAsLong() : 0);
            }
            while (found.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(500)) {
                    if (found.size() == count) {
                        break;
                    }
                    found.add(Lines.record(record.partition(), record.offset(), timestamp(record),
                        record.key(), record.value(), new JsonArray()));
                }
            }
        }
        return found;
    }

    private static Long timestamp(ConsumerRecord<byte[], byte[]> record) throws Exception {
        try {
            return (Long) ConsumerRecord.class.getMethod("timestamp").invoke(record);
        } catch (NoSuchMethodException before010) {
            return null;
        }
    }

    private OldClientDriver() {}
}

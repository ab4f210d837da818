import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonPrimitive;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndTimestamp;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.internals.RecordHeader;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Apache Kafka's Java client, driven by JSON lines (see interop_kit/clients/driver.py). */
public final class ClientDriver {
    private static String bootstrap;

    public static void main(String[] arguments) throws Exception {
        bootstrap = arguments[0];
        Lines.serve(ClientDriver::run);
    }

    private static JsonElement run(JsonObject request) throws Exception {
        String topic = request.get("topic").getAsString();
        switch (request.get("command").getAsString()) {
            case "create":
                return create(topic, request);
            case "delete":
                try (Admin admin = Admin.create(settings())) {
                    admin.deleteTopics(List.of(topic)).all().get(30, TimeUnit.SECONDS);
                }
                return JsonNull.INSTANCE;
            case "produce":
                return produce(topic, request);
            case "consume":
                return consume(topic, request);
            case "offsets":
                return offsets(place(topic, request));
            case "offset_for_time":
                try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
                    Long offset =
                        offsetForTime(consumer, place(topic, request), request.get("time").getAsLong());
                    return offset == null ? JsonNull.INSTANCE : new JsonPrimitive(offset);
                }
            case "read_to_end":
                return readToEnd(place(topic, request), request);
            default:
                throw new IllegalArgumentException("no such command: " + request);
        }
    }

    private static Properties settings() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        return settings;
    }

    private static TopicPartition place(String topic, JsonObject request) {
        return new TopicPartition(topic, request.get("partition").getAsInt());
    }

    private static JsonElement create(String topic, JsonObject request) throws Exception {
        Map<String, String> config = new HashMap<>();
        for (Map.Entry<String, JsonElement> entry : request.getAsJsonObject("config").entrySet()) {
            config.put(entry.getKey(), entry.getValue().getAsString());
        }
        try (Admin admin = Admin.create(settings())) {
            NewTopic wanted = new NewTopic(topic, request.get("partitions").getAsInt(), (short) 1);
            admin.createTopics(List.of(wanted.configs(config))).all().get(30, TimeUnit.SECONDS);
        }
        return JsonNull.INSTANCE;
    }

    private static JsonElement produce(String topic, JsonObject request) throws Exception {
        Properties settings = settings();
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        settings.put("compression.type", request.get("codec").getAsString());
        settings.put("acks", request.get("acks").getAsString());
        settings.put("enable.idempotence", request.get("idempotent").getAsString());
        settings.put("linger.ms", "50");
        settings.put("batch.size", "900000");
        settings.put("max.request.size", "4000000");
        JsonArray offsets = new JsonArray();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonElement element : request.getAsJsonArray("records")) {
                JsonObject fields = element.getAsJsonObject();
                List<Header> headers = new ArrayList<>();
                for (JsonElement header : fields.getAsJsonArray("headers")) {
                    JsonArray pair = header.getAsJsonArray();
                    headers.add(
                        new RecordHeader(pair.get(0).getAsString(), Lines.bytes(pair.get(1))));
                }
                JsonElement timestamp = fields.get("timestamp");
                sent.add(producer.send(new ProducerRecord<>(
                    topic,
                    fields.get("partition").getAsInt(),
                    timestamp.isJsonNull() ? null : timestamp.getAsLong(),
                    Lines.bytes(fields.get("key")),
                    Lines.bytes(fields.get("value")),
                    headers)));
            }
            producer.flush();
            for (Future<RecordMetadata> future : sent) {
                offsets.add(future.get(30, TimeUnit.SECONDS).offset());
            }
        }
        return offsets;
    }

    private static KafkaConsumer<byte[], byte[]> consumer() {
        Properties settings = settings();
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("enable.auto.commit", "false");
        settings.put("auto.offset.reset", "none");
        settings.put("fetch.max.wait.ms", "100");
        return new KafkaConsumer<>(settings);
    }

    private static Long offsetForTime(
        KafkaConsumer<byte[], byte[]> consumer, TopicPartition place, long time) {
        OffsetAndTimestamp found = consumer.offsetsForTimes(Map.of(place, time)).get(place);
        return found == null ? null : found.offset();
    }

    private static JsonElement offsets(TopicPartition place) {
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            JsonArray both = new JsonArray();
            both.add(consumer.beginningOffsets(Set.of(place)).get(place));
            both.add(consumer.endOffsets(Set.of(place)).get(place));
            return both;
        }
    }

    /** As Kafka Connect and Streams do it: until the position is where the log ended. */
    private static JsonElement readToEnd(TopicPartition place, JsonObject request) {
        JsonArray found = new JsonArray();
        JsonObject result = new JsonObject();
        result.add("offsets", found);
        long deadline = System.nanoTime() + request.get("timeout").getAsLong() * 1_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            long end = consumer.endOffsets(Set.of(place)).get(place);
            while (consumer.position(place) < end) {
                if (System.nanoTime() > deadline) {
                    throw new IllegalStateException(
                        "at " + consumer.position(place) + ", the end is " + end);
                }
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    found.add(record.offset());
                }
            }
            result.addProperty("position", consumer.position(place));
        }
        return result;
    }

    private static JsonElement consume(String topic, JsonObject request) {
        TopicPartition place = place(topic, request);
        int count = request.get("count").getAsInt();
        JsonObject start = request.getAsJsonObject("start");
        JsonArray found = new JsonArray();
        long deadline = System.nanoTime() + request.get("timeout").getAsLong() * 1_000_000L;
        try (KafkaConsumer<byte[], byte[]> consumer = consumer()) {
            consumer.assign(List.of(place));
            if (start.has("time")) {
                consumer.seek(place, offsetForTime(consumer, place, start.get("time").getAsLong()));
            } else if (start.has("offset")) {
                consumer.seek(place, start.get("offset").getAsLong());
            } else {
                consumer.seekToBeginning(List.of(place));
            }
            while (found.size() < count && System.nanoTime() < deadline) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(500))) {
                    if (found.size() == count) {
                        break;
                    }
                    JsonArray headers = new JsonArray();
                    for (Header header : record.headers()) {
                        JsonArray pair = new JsonArray();
                        pair.add(header.key());
                        pair.add(Lines.text(header.value()));
                        headers.add(pair);
                    }
                    found.add(Lines.record(record.partition(), record.offset(), record.timestamp(),
                        record.key(), record.value(), headers));
                }
            }
        }
        return found;
    }
}

import com.google.gson.JsonArray;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeSet;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.UnknownMemberIdException;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** The worker of interop_kit/group_member.py with Kafka's own client; see there for what it tells. */
final class GroupMember implements ConsumerRebalanceListener {
    private static final int HEARTBEATS = 6;
    private static final PrintStream EVENTS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private final KafkaConsumer<byte[], byte[]> consumer;
    private final TreeSet<Integer> owned = new TreeSet<>();

    public static void main(String[] arguments) {
        System.setOut(System.err);
        GroupMember member = new GroupMember(JsonParser.parseString(arguments[0]).getAsJsonObject());
        CountDownLatch left = new CountDownLatch(1);
        Runtime.getRuntime()
            .addShutdownHook(
                new Thread(
                    () -> {
                        member.consumer.wakeup();
                        try {
                            left.await();
                        } catch (InterruptedException ended) {
                            Thread.currentThread().interrupt();
                        }
                    }));
        try {
            member.run();
            left.countDown();
        } catch (Throwable problem) {
            problem.printStackTrace();
            Runtime.getRuntime().halt(1);
        }
    }

    private GroupMember(JsonObject settings) {
        Properties wanted = new Properties();
        wanted.put("bootstrap.servers", settings.get("bootstrap").getAsString());
        wanted.put("group.id", settings.get("group").getAsString());
        wanted.put("auto.offset.reset", "earliest");
        wanted.put("enable.auto.commit", "false");
        wanted.put("max.poll.records", "200");
        wanted.put("reconnect.backoff.ms", "20");
        wanted.put("retry.backoff.ms", "20");
        wanted.put("retry.backoff.max.ms", "100");
        String assignor = settings.get("assignor").getAsString();
        if (settings.get("protocol").getAsString().equals("consumer")) {
            wanted.put("group.protocol", "consumer");
            wanted.put("group.remote.assignor", assignor);
        } else {
            int session = settings.get("session_ms").getAsInt();
            wanted.put("session.timeout.ms", String.valueOf(session));
            wanted.put("heartbeat.interval.ms", String.valueOf(session / HEARTBEATS));
            wanted.put("partition.assignment.strategy", "org.apache.kafka.clients.consumer." + assignor);
        }
        consumer = new KafkaConsumer<>(wanted, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        consumer.subscribe(List.of(settings.get("topic").getAsString()), this);
    }

    private void run() {
        try {
            while (true) {
                ConsumerRecords<byte[], byte[]> records;
                try {
                    records = consumer.poll(Duration.ofMillis(100));
                } catch (UnknownMemberIdException fenced) {
                    // Its session ended while it asked for committed offsets: the client tells so
                    // once, and joins again by itself.
                    continue;
                }
                int generation = consumer.groupMetadata().generationId();
                for (TopicPartition partition : records.partitions()) {
                    handle(partition, generation, records.records(partition));
                }
            }
        } catch (WakeupException asked) {
            consumer.close();
        }
    }

    private void handle(
        TopicPartition partition, int generation, List<ConsumerRecord<byte[], byte[]>> records) {
        long last = records.get(records.size() - 1).offset();
        JsonObject read = event("read");
        read.addProperty("generation", generation);
        read.addProperty("partition", partition.partition());
        read.addProperty("first", records.get(0).offset());
        read.addProperty("last", last);
        EVENTS.println(read);
        long began = System.nanoTime();
        try {
            consumer.commitSync(Map.of(partition, new OffsetAndMetadata(last + 1)));
        } catch (WakeupException asked) {
            throw asked;
        } catch (KafkaException problem) {
            JsonObject refused = event("refused");
            refused.addProperty("generation", generation);
            refused.addProperty("reason", problem.toString());
            EVENTS.println(refused);
            return;
        }
        read.addProperty("event", "committed");
        read.addProperty("began", began);
        read.addProperty("ended", System.nanoTime());
        EVENTS.println(read);
    }

    @Override
    public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
        partitions.forEach(each -> owned.add(each.partition()));
        tellOwned();
    }

    @Override
    public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
        partitions.forEach(each -> owned.remove(each.partition()));
        tellOwned();
    }

    private void tellOwned() {
        JsonArray numbers = new JsonArray();
        owned.forEach(numbers::add);
        JsonObject line = event("owns");
        line.add("partitions", numbers);
        EVENTS.println(line);
    }

    private static JsonObject event(String name) {
        JsonObject line = new JsonObject();
        line.addProperty("event", name);
        return line;
    }
}

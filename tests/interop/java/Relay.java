import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The worker of interop_kit/relay.py with Kafka's own client; see there for what it does. */
final class Relay {
    private static final int FENCED = 3;
    private static final PrintStream EVENTS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private final String output;
    private final long openMillis;
    private final KafkaConsumer<byte[], byte[]> consumer;
    private final KafkaProducer<byte[], byte[]> producer;

    public static void main(String[] arguments) {
        System.setOut(System.err);
        int status = 0;
        try {
            new Relay(JsonParser.parseString(arguments[0]).getAsJsonObject()).run();
        } catch (Throwable problem) {
            problem.printStackTrace();
            status = isFenced(problem) ? FENCED : 1;
        }
        Runtime.getRuntime().halt(status);
    }

    private Relay(JsonObject settings) {
        output = settings.get("output").getAsString();
        openMillis = settings.get("open_ms").getAsLong();
        Properties common = new Properties();
        common.put("bootstrap.servers", settings.get("bootstrap").getAsString());
        common.put("reconnect.backoff.ms", "20");
        common.put("reconnect.backoff.max.ms", "100");
        common.put("retry.backoff.ms", "20");
        common.put("retry.backoff.max.ms", "100");
        common.put("request.timeout.ms", "5000");
        Properties reading = new Properties();
        reading.putAll(common);
        reading.put("group.id", settings.get("group").getAsString());
        reading.put("isolation.level", "read_committed");
        reading.put("auto.offset.reset", "earliest");
        reading.put("enable.auto.commit", "false");
        reading.put("max.poll.records", "100");
        if (settings.has("protocol") && settings.get("protocol").getAsString().equals("consumer")) {
            reading.put("group.protocol", "consumer");
        } else {
            reading.put("session.timeout.ms", "2000");
            reading.put("heartbeat.interval.ms", "200");
        }
        Properties writing = new Properties();
        writing.putAll(common);
        writing.put("transactional.id", settings.get("id").getAsString());
        writing.put("transaction.timeout.ms", "20000");
        writing.put("linger.ms", "1");
        consumer = new KafkaConsumer<>(reading, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        producer = new KafkaProducer<>(writing, new ByteArraySerializer(), new ByteArraySerializer());
        retrying(producer::initTransactions);
        consumer.subscribe(List.of(settings.get("input").getAsString()));
        tell("ready", "records", 0);
    }

    private void run() throws InterruptedException {
        while (true) {
            ConsumerRecords<byte[], byte[]> records = consumer.poll(Duration.ofMillis(100));
            if (records.isEmpty()) {
                continue;
            }
            try {
                transaction(records);
            } catch (KafkaException problem) {
                if (isFenced(problem)) {
                    throw problem;
                }
                problem.printStackTrace();
                retrying(producer::abortTransaction);
                tell("aborted", "reason", problem.getClass().getSimpleName());
                rewind();
            }
        }
    }

    private void transaction(ConsumerRecords<byte[], byte[]> records) throws InterruptedException {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<byte[], byte[]> record : records) {
            producer.send(new ProducerRecord<>(output, record.partition(), null, turned(record.value())));
            ends.put(
                new TopicPartition(record.topic(), record.partition()),
                new OffsetAndMetadata(record.offset() + 1));
        }
        producer.flush();
        Thread.sleep(openMillis);
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        retrying(producer::commitTransaction);
        tell("committed", "records", records.count());
    }

    /** To the committed offsets, or to the start where there are none. */
    private void rewind() {
        Map<TopicPartition, OffsetAndMetadata> committed = consumer.committed(consumer.assignment());
        for (TopicPartition partition : consumer.assignment()) {
            OffsetAndMetadata offset = committed.get(partition);
            if (offset == null) {
                consumer.seekToBeginning(List.of(partition));
            } else {
                consumer.seek(partition, offset);
            }
        }
    }

    private static boolean isFenced(Throwable problem) {
        for (Throwable cause = problem; cause != null; cause = cause.getCause()) {
            if (cause instanceof ProducerFencedException
                || cause instanceof InvalidProducerEpochException) {
                return true;
            }
        }
        return false;
    }

    /** Until it is done, or cannot be done: a broker that is away comes back. */
    private static void retrying(Runnable call) {
        while (true) {
            try {
                call.run();
                return;
            } catch (TimeoutException again) {
                again.printStackTrace();
            }
        }
    }

    private static byte[] turned(byte[] value) {
        byte[] turned = new byte[value.length];
        for (int at = 0; at < value.length; at++) {
            turned[at] = value[value.length - 1 - at];
        }
        return turned;
    }

    private static void tell(String event, String name, Object value) {
        JsonObject line = new JsonObject();
        line.addProperty("event", event);
        line.addProperty(name, String.valueOf(value));
        EVENTS.println(line);
    }
}

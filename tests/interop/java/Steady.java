import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The worker of interop_kit/steady.py with Kafka's own client; see there for what it tells. */
final class Steady {
    private static final long TELL_MS = 500;
    private static final long PAUSE_AFTER_ERROR_MS = 1000;
    private static final PrintStream EVENTS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);

    private final String bootstrap;
    private final String topic;
    private final String group;
    private final int partitions;
    private final int bytes;
    private final long paceNanos;
    private final AtomicLongArray written;
    private final AtomicLongArray acknowledged;
    private final Map<String, AtomicLongArray> read = new TreeMap<>();
    private final AtomicLong again = new AtomicLong();
    private final CountDownLatch enough = new CountDownLatch(1);
    private final CountDownLatch leaving = new CountDownLatch(1);

    public static void main(String[] arguments) throws Exception {
        System.setOut(System.err);
        new Steady(JsonParser.parseString(arguments[0]).getAsJsonObject()).run();
        System.exit(0);
    }

    private Steady(JsonObject settings) {
        bootstrap = settings.get("bootstrap").getAsString();
        topic = settings.get("topic").getAsString();
        group = settings.get("group").getAsString();
        partitions = settings.get("partitions").getAsInt();
        bytes = settings.get("bytes").getAsInt();
        paceNanos = (long) (1e9 * partitions / settings.get("rate").getAsDouble());
        written = new AtomicLongArray(partitions);
        acknowledged = new AtomicLongArray(partitions);
        for (JsonElement each : settings.getAsJsonArray("topics")) {
            read.put(each.getAsString(), new AtomicLongArray(partitions));
        }
    }

    private void run() throws Exception {
        Thread writer = new Thread(this::write);
        Thread reader = new Thread(this::read);
        Thread teller = new Thread(this::tellStates);
        for (Thread thread : new Thread[] {writer, reader, teller}) {
            thread.start();
        }
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        if (input.readLine() != null) {
            enough.countDown();
            writer.join();
            tellState();
            tell(event("flushed"));
            while (input.readLine() != null) {
                // Until its end.
            }
        }
        enough.countDown();
        leaving.countDown();
        for (Thread thread : new Thread[] {writer, reader, teller}) {
            thread.join();
        }
    }

    private void write() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        try (KafkaProducer<byte[], byte[]> producer =
            new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            while (!enough.await(paceNanos, TimeUnit.NANOSECONDS)) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, partition, written.getAndIncrement(partition));
                }
            }
            producer.flush();
        } catch (Throwable problem) {
            error("send", problem);
        }
    }

    private void send(KafkaProducer<byte[], byte[]> producer, int partition, long number) {
        byte[] value = new byte[bytes];
        Arrays.fill(value, (byte) '.');
        byte[] head = (number + " ").getBytes(StandardCharsets.US_ASCII);
        System.arraycopy(head, 0, value, 0, head.length);
        try {
            producer.send(
                new ProducerRecord<>(topic, partition, null, value),
                (metadata, problem) -> {
                    if (problem != null) {
                        error("send", problem);
                        return;
                    }
                    if (metadata.offset() != number) {
                        wrong(partition + "/" + number + " was acknowledged with offset "
                            + metadata.offset());
                    }
                    acknowledged.incrementAndGet(partition);
                });
        } catch (RuntimeException problem) {
            error("send", problem);
        }
    }

    private void read() {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("group.id", group);
        settings.put("auto.offset.reset", "earliest");
        try (KafkaConsumer<byte[], byte[]> consumer =
            new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(read.keySet());
            while (leaving.getCount() > 0) {
                try {
                    for (ConsumerRecord<byte[], byte[]> each : consumer.poll(Duration.ofMillis(200))) {
                        receive(each);
                    }
                } catch (RuntimeException problem) {
                    error("poll", problem);
                    leaving.await(PAUSE_AFTER_ERROR_MS, TimeUnit.MILLISECONDS);
                }
            }
        } catch (Throwable problem) {
            error("poll", problem);
        }
    }

    private void receive(ConsumerRecord<byte[], byte[]> record) {
        String place = record.topic() + "-" + record.partition();
        int end = 0;
        while (record.value()[end] != ' ') {
            end++;
        }
        long number = Long.parseLong(new String(record.value(), 0, end, StandardCharsets.US_ASCII));
        if (number != record.offset()) {
            wrong(place + " has " + number + " at offset " + record.offset());
        }
        AtomicLongArray positions = read.get(record.topic());
        long following = positions.get(record.partition());
        if (record.offset() > following) {
            wrong(place + ": " + record.offset() + " was read after " + (following - 1));
        }
        if (record.offset() < following) {
            again.incrementAndGet();
        } else {
            positions.set(record.partition(), record.offset() + 1);
        }
    }

    private void tellStates() {
        try {
            while (!leaving.await(TELL_MS, TimeUnit.MILLISECONDS)) {
                tellState();
            }
        } catch (InterruptedException ended) {
            Thread.currentThread().interrupt();
        }
    }

    private void tellState() {
        JsonObject line = event("state");
        line.add("written", numbers(written));
        line.add("acknowledged", numbers(acknowledged));
        JsonObject positions = new JsonObject();
        read.forEach((name, each) -> positions.add(name, numbers(each)));
        line.add("read", positions);
        line.addProperty("again", again.get());
        tell(line);
    }

    private static JsonArray numbers(AtomicLongArray values) {
        JsonArray found = new JsonArray();
        for (int index = 0; index < values.length(); index++) {
            found.add(values.get(index));
        }
        return found;
    }

    private static void error(String call, Throwable problem) {
        problem.printStackTrace();
        JsonObject line = event("error");
        line.addProperty("call", call);
        line.addProperty("reason", problem.toString());
        tell(line);
    }

    private static void wrong(String what) {
        JsonObject line = event("wrong");
        line.addProperty("what", what);
        tell(line);
    }

    private static JsonObject event(String name) {
        JsonObject line = new JsonObject();
        line.addProperty("event", name);
        return line;
    }

    private static synchronized void tell(JsonObject line) {
        EVENTS.println(line);
    }
}

import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import java.time.Duration;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StoreQueryParameters;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.StateRestoreListener;
import org.apache.kafka.streams.state.KeyValueIterator;
import org.apache.kafka.streams.state.QueryableStoreTypes;
import org.apache.kafka.streams.state.ReadOnlyKeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Counts the records of a topic by key with Kafka Streams, driven by JSON lines. The counts are held in
 * memory alone, so that each start has to restore them from their changelog.
 *
 * <p>Arguments: bootstrap, application id, topic, folder. Commands: counts ({"counts": {key: count},
 * "restored": records that came from the changelog}, once the store is restored), close.
 */
public final class RestoredCounts {
    private static final String STORE = "counts";
    private static final AtomicLong restored = new AtomicLong();
    private static final CountDownLatch running = new CountDownLatch(1);
    private static KafkaStreams streams;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("application.id", arguments[1]);
        settings.put("state.dir", arguments[3]);
        settings.put("default.key.serde", Serdes.String().getClass().getName());
        settings.put("default.value.serde", Serdes.String().getClass().getName());
        settings.put("num.stream.threads", "1");
        settings.put("commit.interval.ms", "100");
        settings.put("replication.factor", "1");
        settings.put("statestore.cache.max.bytes", "0");
        settings.put("consumer.auto.offset.reset", "earliest");
        StreamsBuilder builder = new StreamsBuilder();
        builder.<String, String>stream(arguments[2])
            .groupByKey()
            .count(Materialized.<String, Long>as(Stores.inMemoryKeyValueStore(STORE))
                .withKeySerde(Serdes.String())
                .withValueSerde(Serdes.Long()));
        streams = new KafkaStreams(builder.build(), settings);
        streams.setGlobalStateRestoreListener(new Listener());
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                running.countDown();
            }
        });
        streams.start();
        Lines.serve(RestoredCounts::run);
    }

    private static JsonElement run(JsonObject request) throws Exception {
        switch (request.get("command").getAsString()) {
            case "counts":
                return counts();
            case "close":
                streams.close(Duration.ofSeconds(20));
                return JsonNull.INSTANCE;
            default:
                throw new IllegalArgumentException("no such command: " + request);
        }
    }

    private static JsonElement counts() throws Exception {
        if (!running.await(50, TimeUnit.SECONDS)) {
            throw new IllegalStateException(
                "still " + streams.state() + " after " + restored + " restored records");
        }
        ReadOnlyKeyValueStore<String, Long> store = streams.store(
            StoreQueryParameters.fromNameAndType(STORE, QueryableStoreTypes.keyValueStore()));
        JsonObject counts = new JsonObject();
        try (KeyValueIterator<String, Long> all = store.all()) {
            while (all.hasNext()) {
                KeyValue<String, Long> each = all.next();
                counts.addProperty(each.key, each.value);
            }
        }
        JsonObject result = new JsonObject();
        result.add("counts", counts);
        result.addProperty("restored", restored.get());
        return result;
    }

    private static final class Listener implements StateRestoreListener {
        @Override
        public void onRestoreStart(TopicPartition place, String store, long start, long end) {}

        @Override
        public void onBatchRestored(TopicPartition place, String store, long end, long count) {}

        @Override
        public void onRestoreEnd(TopicPartition place, String store, long total) {
            restored.addAndGet(total);
        }
    }
}

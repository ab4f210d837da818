import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import java.lang.reflect.Constructor;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;

/**
 * The producer of Kafka's Java clients from before message format v2, down to 0.8.2.
 *
 * <p>The same source is compiled against each of them: what came later (a record's timestamp, in
 * 0.10) is found by reflection.
 */
public final class OldProducerDriver {
    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0];
        Lines.serve(request -> produce(bootstrap, request));
    }

    static JsonElement produce(String bootstrap, JsonObject request) throws Exception {
        Properties settings = new Properties();
        String serializer = "org.apache.kafka.common.serialization.ByteArraySerializer";
        settings.put("bootstrap.servers", bootstrap);
        settings.put("key.serializer", serializer);
        settings.put("value.serializer", serializer);
        settings.put("compression.type", request.get("codec").getAsString());
        settings.put("acks", request.get("acks").getAsString());
        settings.put("linger.ms", "50");
        settings.put("batch.size", "900000");
        settings.put("max.request.size", "4000000");
        String topic = request.get("topic").getAsString();
        JsonArray offsets = new JsonArray();
        KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings);
        try {
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (JsonElement element : request.getAsJsonArray("records")) {
                sent.add(producer.send(record(topic, element.getAsJsonObject())));
            }
            for (Future<RecordMetadata> future : sent) {
                offsets.add(future.get(30, TimeUnit.SECONDS).offset());
            }
        } finally {
            producer.close();
        }
        return offsets;
    }

    @SuppressWarnings("unchecked")
    private static ProducerRecord<byte[], byte[]> record(String topic, JsonObject fields)
        throws Exception {
        Integer partition = fields.get("partition").getAsInt();
        byte[] key = Lines.bytes(fields.get("key"));
        byte[] value = Lines.bytes(fields.get("value"));
        if (!fields.get("timestamp").isJsonNull()) {
            Constructor<?> stamped = ProducerRecord.class.getConstructor(
                String.class, Integer.class, Long.class, Object.class, Object.class);
            Long timestamp = fields.get("timestamp").getAsLong();
            return (ProducerRecord<byte[], byte[]>)
                stamped.newInstance(topic, partition, timestamp, key, value);
        }
        return new ProducerRecord<>(topic, partition, key, value);
    }

    private OldProducerDriver() {}
}

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.connect.connector.Task;
import org.apache.kafka.connect.data.Schema;
import org.apache.kafka.connect.source.SourceConnector;
import org.apache.kafka.connect.source.SourceRecord;
import org.apache.kafka.connect.source.SourceTask;

/** A Kafka Connect source that writes the numbers up to `count`, from where it was the last time. */
public final class CountingSource extends SourceConnector {
    private Map<String, String> given;

    @Override
    public void start(Map<String, String> settings) {
        given = settings;
    }

    @Override
    public Class<? extends Task> taskClass() {
        return Counting.class;
    }

    @Override
    public List<Map<String, String>> taskConfigs(int most) {
        return List.of(given);
    }

    @Override
    public void stop() {}

    @Override
    public ConfigDef config() {
        return new ConfigDef()
            .define("topic", ConfigDef.Type.STRING, ConfigDef.Importance.HIGH, "where to")
            .define("count", ConfigDef.Type.INT, ConfigDef.Importance.HIGH, "the last number");
    }

    @Override
    public String version() {
        return "1";
    }

    public static final class Counting extends SourceTask {
        private static final Map<String, String> SOURCE = Map.of("source", "numbers");
        private String topic;
        private long last;
        private long number;

        @Override
        public void start(Map<String, String> settings) {
            topic = settings.get("topic");
            last = Long.parseLong(settings.get("count"));
            Map<String, Object> stored = context.offsetStorageReader().offset(SOURCE);
            number = stored == null ? 0 : (Long) stored.get("number");
        }

        @Override
        public List<SourceRecord> poll() throws InterruptedException {
            List<SourceRecord> records = new ArrayList<>();
            while (number < last) {
                number++;
                records.add(new SourceRecord(
                    SOURCE, Map.of("number", number), topic, 0,
                    Schema.STRING_SCHEMA, Long.toString(number)));
            }
            if (records.isEmpty()) {
                Thread.sleep(50);
                return null;
            }
            return records;
        }

        @Override
        public void stop() {}

        @Override
        public String version() {
            return "1";
        }
    }
}

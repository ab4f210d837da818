import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonNull;
import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import com.google.gson.JsonPrimitive;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/** One JSON line in, one JSON line out: the protocol of interop_kit/clients/driver.py. */
final class Lines {
    interface Command {
        JsonElement run(JsonObject request) throws Exception;
    }

    private static final Gson GSON = new GsonBuilder().serializeNulls().create();

    static void serve(Command command) throws Exception {
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream output = new PrintStream(System.out, true, "UTF-8");
        // Whatever a library prints must not land between the answers.
        System.setOut(System.err);
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonObject answer = new JsonObject();
            try {
                answer.add("result", command.run(JsonParser.parseString(line).getAsJsonObject()));
            } catch (Throwable error) {
                error.printStackTrace();
                Throwable cause = error.getCause() == null ? error : error.getCause();
                answer.addProperty("error", cause.toString());
            }
            output.println(GSON.toJson(answer));
        }
        System.exit(0);
    }

    static byte[] bytes(JsonElement text) {
        return text.isJsonNull() ? null : Base64.getDecoder().decode(text.getAsString());
    }

    static JsonElement text(byte[] bytes) {
        return bytes == null
            ? JsonNull.INSTANCE
            : new JsonPrimitive(Base64.getEncoder().encodeToString(bytes));
    }

    static JsonObject record(
        int partition, long offset, Long timestamp, byte[] key, byte[] value, JsonArray headers) {
        JsonObject record = new JsonObject();
        record.addProperty("partition", partition);
        record.addProperty("offset", offset);
        record.addProperty("timestamp", timestamp);
        record.add("key", text(key));
        record.add("value", text(value));
        record.add("headers", headers);
        return record;
    }

    private Lines() {}
}

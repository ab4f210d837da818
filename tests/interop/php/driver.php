<?php
// PHP over librdkafka through FFI, driven by JSON lines (see interop_kit/clients/driver.py).

declare(strict_types=1);

const PRODUCER = 0;
const CONSUMER = 1;
const EVENT_DELIVERY = 1;
const COPY = 2;
const TIMEOUT = 30000;
// A broker went away, or all of them; librdkafka goes on trying.
const BROKER_AWAY = [-195, -187];

// What a member of the argument list of rd_kafka_produceva says.
const ARGUMENT_TOPIC = 1;
const ARGUMENT_PARTITION = 3;
const ARGUMENT_VALUE = 4;
const ARGUMENT_KEY = 5;
const ARGUMENT_OPAQUE = 6;
const ARGUMENT_FLAGS = 7;
const ARGUMENT_TIMESTAMP = 8;
const ARGUMENT_HEADERS = 10;

final class Driver
{
    private FFI $kafka;

    public function __construct(private string $bootstrap)
    {
        $this->kafka = FFI::cdef(file_get_contents(__DIR__ . '/librdkafka.h'), 'librdkafka.so.1');
    }

    public function run(array $request): mixed
    {
        return match ($request['command']) {
            'create' => $this->create($request),
            'delete' => $this->delete($request),
            'produce' => $this->produce($request),
            'consume' => $this->consume($request),
            'offsets' => $this->offsets($request),
            'offset_for_time' => $this->offsetForTime($request['topic'], $request['partition'], $request['time']),
        };
    }

    private function client(int $type, array $settings = [], int $events = 0): FFI\CData
    {
        $complaint = FFI::new('char[512]');
        $conf = $this->kafka->rd_kafka_conf_new();
        foreach (['bootstrap.servers' => $this->bootstrap, ...$settings] as $name => $value) {
            if ($this->kafka->rd_kafka_conf_set($conf, $name, $value, $complaint, 512) !== 0) {
                throw new RuntimeException(FFI::string($complaint));
            }
        }
        if ($events !== 0) {
            $this->kafka->rd_kafka_conf_set_events($conf, $events);
        }
        $client = $this->kafka->rd_kafka_new($type, $conf, $complaint, 512);
        if ($client === null) {
            throw new RuntimeException(FFI::string($complaint));
        }
        return $client;
    }

    private function check(int $error): void
    {
        if ($error !== 0) {
            throw new RuntimeException($this->kafka->rd_kafka_err2str($error));
        }
    }

    private function create(array $request): mixed
    {
        $complaint = FFI::new('char[512]');
        $new = $this->kafka->rd_kafka_NewTopic_new($request['topic'], $request['partitions'], 1, $complaint, 512);
        foreach ($request['config'] as $name => $value) {
            $this->check($this->kafka->rd_kafka_NewTopic_set_config($new, $name, $value));
        }
        $list = $this->kafka->new('rd_kafka_NewTopic_t *[1]');
        $list[0] = $new;
        $this->ask(function ($client, $queue) use ($list) {
            $this->kafka->rd_kafka_CreateTopics($client, $list, 1, null, $queue);
        }, 'rd_kafka_CreateTopics_result_topics');
        $this->kafka->rd_kafka_NewTopic_destroy($new);
        return null;
    }

    private function delete(array $request): mixed
    {
        $list = $this->kafka->new('rd_kafka_DeleteTopic_t *[1]');
        $list[0] = $this->kafka->rd_kafka_DeleteTopic_new($request['topic']);
        $this->ask(function ($client, $queue) use ($list) {
            $this->kafka->rd_kafka_DeleteTopics($client, $list, 1, null, $queue);
        }, 'rd_kafka_DeleteTopics_result_topics');
        $this->kafka->rd_kafka_DeleteTopic_destroy($list[0]);
        return null;
    }

    /** An admin call about one topic; its answer comes as an event. */
    private function ask(callable $call, string $results): void
    {
        $client = $this->client(PRODUCER);
        $queue = $this->kafka->rd_kafka_queue_new($client);
        $call($client, $queue);
        $event = $this->kafka->rd_kafka_queue_poll($queue, TIMEOUT);
        if ($event === null) {
            throw new RuntimeException('no answer in time');
        }
        $this->check($this->kafka->rd_kafka_event_error($event));
        $count = $this->kafka->new('size_t');
        $result = $this->kafka->$results($event, FFI::addr($count))[0];
        $error = $this->kafka->rd_kafka_topic_result_error($result);
        $this->check($error);
        $this->kafka->rd_kafka_event_destroy($event);
        $this->kafka->rd_kafka_queue_destroy($queue);
        $this->kafka->rd_kafka_destroy($client);
    }

    private function produce(array $request): array
    {
        $client = $this->client(PRODUCER, [
            'compression.type' => $request['codec'],
            'acks' => $request['acks'],
            'enable.idempotence' => $request['idempotent'] ? 'true' : 'false',
            'linger.ms' => '50',
            'batch.size' => '900000',
            'message.timeout.ms' => (string) TIMEOUT,
        ], EVENT_DELIVERY);
        foreach ($request['records'] as $number => $record) {
            $this->send($client, $request['topic'], $record, $number);
        }
        $offsets = array_fill(0, count($request['records']), -1);
        $queue = $this->kafka->rd_kafka_queue_get_main($client);
        for ($open = count($offsets); $open > 0;) {
            $event = $this->kafka->rd_kafka_queue_poll($queue, TIMEOUT);
            if ($event === null) {
                throw new RuntimeException("$open records were not delivered in time");
            }
            if ($this->kafka->rd_kafka_event_type($event) === EVENT_DELIVERY) {
                while (($message = $this->kafka->rd_kafka_event_message_next($event)) !== null) {
                    $this->check($message->err);
                    $offsets[$message->opaque] = $request['acks'] === '0' ? -1 : $message->offset;
                    $open--;
                }
            }
            $this->kafka->rd_kafka_event_destroy($event);
        }
        $this->kafka->rd_kafka_queue_destroy($queue);
        $this->kafka->rd_kafka_destroy($client);
        return $offsets;
    }

    private function send(FFI\CData $client, string $topic, array $record, int $number): void
    {
        $arguments = $this->kafka->new('rd_kafka_vu_t[8]');
        $name = $this->memory($topic . "\0");
        $key = $this->memory($record['key'] === null ? null : base64_decode($record['key']));
        $value = $this->memory($record['value'] === null ? null : base64_decode($record['value']));
        $arguments[0]->type = ARGUMENT_TOPIC;
        $arguments[0]->u->pointer = FFI::cast('void *', FFI::addr($name));
        $arguments[1]->type = ARGUMENT_PARTITION;
        $arguments[1]->u->i32 = $record['partition'];
        $arguments[2]->type = ARGUMENT_FLAGS;
        $arguments[2]->u->i32 = COPY;
        $arguments[3]->type = ARGUMENT_OPAQUE;
        $arguments[3]->u->i64 = $number;
        $arguments[4]->type = ARGUMENT_KEY;
        $arguments[5]->type = ARGUMENT_VALUE;
        foreach ([4 => [$key, $record['key']], 5 => [$value, $record['value']]] as $at => [$memory, $text]) {
            if ($memory !== null) {
                $arguments[$at]->u->memory->data = FFI::cast('void *', FFI::addr($memory));
                $arguments[$at]->u->memory->size = strlen(base64_decode($text));
            }
        }
        $count = 6;
        if ($record['timestamp'] !== null) {
            $arguments[$count]->type = ARGUMENT_TIMESTAMP;
            $arguments[$count++]->u->i64 = $record['timestamp'];
        }
        if ($record['headers'] !== []) {
            $headers = $this->kafka->rd_kafka_headers_new(count($record['headers']));
            foreach ($record['headers'] as [$header, $content]) {
                $bytes = $content === null ? null : base64_decode($content);
                $memory = $this->memory($bytes);
                $this->check($this->kafka->rd_kafka_header_add(
                    $headers,
                    $header,
                    -1,
                    $memory === null ? null : FFI::cast('void *', FFI::addr($memory)),
                    strlen($bytes ?? ''),
                ));
            }
            $arguments[$count]->type = ARGUMENT_HEADERS;
            $arguments[$count++]->u->pointer = FFI::cast('void *', $headers);
        }
        $error = $this->kafka->rd_kafka_produceva($client, $arguments, $count);
        if ($error !== null) {
            throw new RuntimeException($this->kafka->rd_kafka_error_string($error));
        }
    }

    /** C memory with these bytes; never of size 0, so that empty is not null. */
    private function memory(?string $bytes): ?FFI\CData
    {
        if ($bytes === null) {
            return null;
        }
        $size = max(1, strlen($bytes));
        $memory = $this->kafka->new("char[$size]");
        if ($bytes !== '') {
            FFI::memcpy($memory, $bytes, strlen($bytes));
        }
        return $memory;
    }

    private function offsets(array $request): array
    {
        $client = $this->client(CONSUMER);
        $low = $this->kafka->new('int64_t');
        $high = $this->kafka->new('int64_t');
        $this->check($this->kafka->rd_kafka_query_watermark_offsets(
            $client,
            $request['topic'],
            $request['partition'],
            FFI::addr($low),
            FFI::addr($high),
            TIMEOUT,
        ));
        $this->kafka->rd_kafka_destroy($client);
        return [$low->cdata, $high->cdata];
    }

    private function offsetForTime(string $topic, int $partition, int $time): ?int
    {
        $client = $this->client(CONSUMER);
        $list = $this->kafka->rd_kafka_topic_partition_list_new(1);
        $this->kafka->rd_kafka_topic_partition_list_add($list, $topic, $partition)->offset = $time;
        $this->check($this->kafka->rd_kafka_offsets_for_times($client, $list, TIMEOUT));
        $this->check($list->elems[0]->err);
        $offset = $list->elems[0]->offset;
        $this->kafka->rd_kafka_topic_partition_list_destroy($list);
        $this->kafka->rd_kafka_destroy($client);
        return $offset < 0 ? null : $offset;
    }

    private function consume(array $request): array
    {
        ['topic' => $name, 'partition' => $partition, 'start' => $start] = $request;
        $offset = $start['offset'] ?? -2;
        if (isset($start['time'])) {
            $offset = $this->offsetForTime($name, $partition, $start['time']);
        }
        $client = $this->client(CONSUMER, ['fetch.wait.max.ms' => '100', 'auto.offset.reset' => 'error']);
        $topic = $this->kafka->rd_kafka_topic_new($client, $name, null);
        if ($this->kafka->rd_kafka_consume_start($topic, $partition, $offset) !== 0) {
            $this->check($this->kafka->rd_kafka_last_error());
        }
        $found = [];
        $deadline = microtime(true) + $request['timeout'] / 1000;
        while (count($found) < $request['count'] && microtime(true) < $deadline) {
            $message = $this->kafka->rd_kafka_consume($topic, $partition, 500);
            if ($message !== null) {
                if (!in_array($message->err, BROKER_AWAY, true)) {
                    $this->check($message->err);
                    $found[] = $this->record($message);
                }
                $this->kafka->rd_kafka_message_destroy($message);
            }
        }
        $this->kafka->rd_kafka_consume_stop($topic, $partition);
        $this->kafka->rd_kafka_topic_destroy($topic);
        $this->kafka->rd_kafka_destroy($client);
        return $found;
    }

    private function record(FFI\CData $message): array
    {
        $headers = [];
        $list = $this->kafka->new('rd_kafka_headers_t *');
        if ($this->kafka->rd_kafka_message_headers($message, FFI::addr($list)) === 0) {
            $name = $this->kafka->new('const char *');
            $value = $this->kafka->new('void *');
            $size = $this->kafka->new('size_t');
            for (
                $index = 0;
                $this->kafka->rd_kafka_header_get_all(
                    $list,
                    $index,
                    FFI::addr($name),
                    FFI::addr($value),
                    FFI::addr($size),
                ) === 0;
                $index++
            ) {
                $headers[] = [FFI::string($name), self::text(FFI::isNull($value) ? null : $value, $size->cdata)];
            }
        }
        return [
            'partition' => $message->partition,
            'offset' => $message->offset,
            'timestamp' => $this->kafka->rd_kafka_message_timestamp($message, null),
            'key' => self::text($message->key, $message->key_len),
            'value' => self::text($message->payload, $message->len),
            'headers' => $headers,
        ];
    }

    private static function text(?FFI\CData $pointer, int $size): ?string
    {
        if ($pointer === null) {
            return null;
        }
        return $size === 0 ? '' : base64_encode(FFI::string(FFI::cast('char *', $pointer), $size));
    }
}

$driver = new Driver($argv[1]);
while (($line = fgets(STDIN)) !== false) {
    try {
        $answer = ['result' => $driver->run(json_decode($line, true, flags: JSON_THROW_ON_ERROR))];
    } catch (Throwable $error) {
        fwrite(STDERR, "$error\n");
        $answer = ['error' => $error->getMessage()];
    }
    fwrite(STDOUT, json_encode($answer, JSON_THROW_ON_ERROR | JSON_UNESCAPED_UNICODE) . "\n");
}

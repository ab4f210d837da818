/* The part of librdkafka's interface that driver.php calls. */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_topic_conf_s rd_kafka_topic_conf_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_event_s rd_kafka_event_t;
typedef struct rd_kafka_NewTopic_s rd_kafka_NewTopic_t;
typedef struct rd_kafka_DeleteTopic_s rd_kafka_DeleteTopic_t;
typedef struct rd_kafka_topic_result_s rd_kafka_topic_result_t;

typedef struct {
  int err;
  rd_kafka_topic_t *topic;
  int32_t partition;
  void *payload;
  size_t len;
  void *key;
  size_t key_len;
  int64_t offset;
  intptr_t opaque; /* a pointer to the library, the number of the record to us */
} rd_kafka_message_t;

typedef struct {
  int type;
  union {
    const char *text;
    int32_t i32;
    int64_t i64;
    void *pointer;
    struct {
      void *data;
      size_t size;
    } memory;
    char padding[64];
  } u;
} rd_kafka_vu_t;

typedef struct {
  char *topic;
  int32_t partition;
  int64_t offset;
  void *metadata;
  size_t metadata_size;
  void *opaque;
  int err;
  void *internal;
} rd_kafka_topic_partition_t;

typedef struct {
  int cnt;
  int size;
  rd_kafka_topic_partition_t *elems;
} rd_kafka_topic_partition_list_t;

const char *rd_kafka_version_str(void);
const char *rd_kafka_err2str(int err);
int rd_kafka_last_error(void);

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *conf, const char *name, const char *value,
                      char *complaint, size_t size);
void rd_kafka_conf_set_events(rd_kafka_conf_t *conf, int events);
rd_kafka_t *rd_kafka_new(int type, rd_kafka_conf_t *conf, char *complaint, size_t size);
void rd_kafka_destroy(rd_kafka_t *client);
int rd_kafka_flush(rd_kafka_t *client, int timeout);

rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *client, const char *name,
                                     rd_kafka_topic_conf_t *conf);
void rd_kafka_topic_destroy(rd_kafka_topic_t *topic);

rd_kafka_error_t *rd_kafka_produceva(rd_kafka_t *client, const rd_kafka_vu_t *arguments,
                                     size_t count);
const char *rd_kafka_error_string(const rd_kafka_error_t *error);
void rd_kafka_error_destroy(rd_kafka_error_t *error);
rd_kafka_headers_t *rd_kafka_headers_new(size_t count);
int rd_kafka_header_add(rd_kafka_headers_t *headers, const char *name, ssize_t name_size,
                        const void *value, ssize_t value_size);

int rd_kafka_consume_start(rd_kafka_topic_t *topic, int32_t partition, int64_t offset);
int rd_kafka_consume_stop(rd_kafka_topic_t *topic, int32_t partition);
rd_kafka_message_t *rd_kafka_consume(rd_kafka_topic_t *topic, int32_t partition, int timeout);
void rd_kafka_message_destroy(rd_kafka_message_t *message);
int64_t rd_kafka_message_timestamp(const rd_kafka_message_t *message, int *type);
int rd_kafka_message_headers(const rd_kafka_message_t *message, rd_kafka_headers_t **headers);
int rd_kafka_header_get_all(const rd_kafka_headers_t *headers, size_t index, const char **name,
                            const void **value, size_t *size);

int rd_kafka_query_watermark_offsets(rd_kafka_t *client, const char *topic, int32_t partition,
                                     int64_t *low, int64_t *high, int timeout);
rd_kafka_topic_partition_list_t *rd_kafka_topic_partition_list_new(int size);
rd_kafka_topic_partition_t *rd_kafka_topic_partition_list_add(
    rd_kafka_topic_partition_list_t *list, const char *topic, int32_t partition);
void rd_kafka_topic_partition_list_destroy(rd_kafka_topic_partition_list_t *list);
int rd_kafka_offsets_for_times(rd_kafka_t *client, rd_kafka_topic_partition_list_t *list,
                               int timeout);

rd_kafka_queue_t *rd_kafka_queue_new(rd_kafka_t *client);
rd_kafka_queue_t *rd_kafka_queue_get_main(rd_kafka_t *client);
void rd_kafka_queue_destroy(rd_kafka_queue_t *queue);
rd_kafka_event_t *rd_kafka_queue_poll(rd_kafka_queue_t *queue, int timeout);
int rd_kafka_event_type(const rd_kafka_event_t *event);
int rd_kafka_event_error(rd_kafka_event_t *event);
const char *rd_kafka_event_error_string(rd_kafka_event_t *event);
void rd_kafka_event_destroy(rd_kafka_event_t *event);
const rd_kafka_message_t *rd_kafka_event_message_next(rd_kafka_event_t *event);

rd_kafka_NewTopic_t *rd_kafka_NewTopic_new(const char *topic, int partitions, int replicas,
                                           char *complaint, size_t size);
void rd_kafka_NewTopic_destroy(rd_kafka_NewTopic_t *topic);
int rd_kafka_NewTopic_set_config(rd_kafka_NewTopic_t *topic, const char *name, const char *value);
void rd_kafka_CreateTopics(rd_kafka_t *client, rd_kafka_NewTopic_t **topics, size_t count,
                           void *options, rd_kafka_queue_t *queue);
rd_kafka_DeleteTopic_t *rd_kafka_DeleteTopic_new(const char *topic);
void rd_kafka_DeleteTopic_destroy(rd_kafka_DeleteTopic_t *topic);
void rd_kafka_DeleteTopics(rd_kafka_t *client, rd_kafka_DeleteTopic_t **topics, size_t count,
                           void *options, rd_kafka_queue_t *queue);
const rd_kafka_topic_result_t **rd_kafka_CreateTopics_result_topics(
    const rd_kafka_event_t *result, size_t *count);
const rd_kafka_topic_result_t **rd_kafka_DeleteTopics_result_topics(
    const rd_kafka_event_t *result, size_t *count);
int rd_kafka_topic_result_error(const rd_kafka_topic_result_t *result);
const char *rd_kafka_topic_result_error_string(const rd_kafka_topic_result_t *result);

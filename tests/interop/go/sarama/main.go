// sarama, driven by JSON lines (see interop_kit/clients/driver.py).
//
// A second argument names the Kafka version that it takes the broker for (0.8.2.0 and so on): the
// old ones speak the message formats v0 and v1.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"ottla/interop/lines"

	"github.com/IBM/sarama"
)

var (
	brokers []string
	version = sarama.MaxVersion
)

func main() {
	brokers = strings.Split(os.Args[1], ",")
	if len(os.Args) > 2 {
		var err error
		if version, err = sarama.ParseKafkaVersion(os.Args[2]); err != nil {
			panic(err)
		}
	}
	lines.Serve(run)
}

func settings() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = version
	config.ApiVersionsRequest = version.IsAtLeast(sarama.V0_10_0_0)
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Return.Errors = true
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.MaxMessageBytes = 1_000_000
	config.Producer.Flush.Frequency = 50 * time.Millisecond
	return config
}

func run(asked *lines.Request) (any, error) {
	switch asked.Command {
	case "create":
		return nil, withAdmin(func(admin sarama.ClusterAdmin) error {
			return admin.CreateTopic(asked.Topic, &sarama.TopicDetail{
				NumPartitions: asked.Partitions, ReplicationFactor: 1, ConfigEntries: asked.ConfigPointers(),
			}, false)
		})
	case "delete":
		return nil, withAdmin(func(admin sarama.ClusterAdmin) error {
			return admin.DeleteTopic(asked.Topic)
		})
	case "produce":
		return produce(asked)
	case "consume":
		return consume(asked)
	case "offsets":
		client, err := sarama.NewClient(brokers, settings())
		if err != nil {
			return nil, err
		}
		defer client.Close()
		first, err := client.GetOffset(asked.Topic, asked.Partition, sarama.OffsetOldest)
		if err != nil {
			return nil, err
		}
		following, err := client.GetOffset(asked.Topic, asked.Partition, sarama.OffsetNewest)
		return []int64{first, following}, err
	case "offset_for_time":
		client, err := sarama.NewClient(brokers, settings())
		if err != nil {
			return nil, err
		}
		defer client.Close()
		offset, err := client.GetOffset(asked.Topic, asked.Partition, asked.Time)
		if err != nil || offset < 0 {
			return nil, err
		}
		return offset, nil
	}
	return nil, fmt.Errorf("no such command: %s", asked.Command)
}

func withAdmin(work func(sarama.ClusterAdmin) error) error {
	admin, err := sarama.NewClusterAdmin(brokers, settings())
	if err != nil {
		return err
	}
	defer admin.Close()
	return work(admin)
}

func encoder(data []byte) sarama.Encoder {
	if data == nil {
		return nil
	}
	return sarama.ByteEncoder(data)
}

func produce(asked *lines.Request) (any, error) {
	config := settings()
	config.Producer.Compression = map[string]sarama.CompressionCodec{
		"none":   sarama.CompressionNone,
		"gzip":   sarama.CompressionGZIP,
		"snappy": sarama.CompressionSnappy,
		"lz4":    sarama.CompressionLZ4,
		"zstd":   sarama.CompressionZSTD,
	}[asked.Codec]
	config.Producer.RequiredAcks = map[string]sarama.RequiredAcks{
		"0": sarama.NoResponse, "1": sarama.WaitForLocal, "all": sarama.WaitForAll,
	}[asked.Acks]
	if asked.Idempotent {
		config.Producer.Idempotent = true
		config.Net.MaxOpenRequests = 1
	}
	producer, err := sarama.NewSyncProducer(brokers, config)
	if err != nil {
		return nil, err
	}
	var messages []*sarama.ProducerMessage
	for _, given := range asked.Records {
		message := &sarama.ProducerMessage{
			Topic:     asked.Topic,
			Partition: given.Partition,
			Key:       encoder(given.Key),
			Value:     encoder(given.Value),
		}
		if given.Timestamp != nil {
			message.Timestamp = time.UnixMilli(*given.Timestamp)
		}
		for _, h := range given.Headers {
			message.Headers = append(
				message.Headers, sarama.RecordHeader{Key: []byte(h.Name), Value: h.Value})
		}
		messages = append(messages, message)
	}
	err = errors.Join(producer.SendMessages(messages), producer.Close())
	given := []int64{}
	for _, sent := range messages {
		if asked.Acks == "0" {
			given = append(given, -1)
		} else {
			given = append(given, sent.Offset)
		}
	}
	return given, err
}

func consume(asked *lines.Request) (any, error) {
	client, err := sarama.NewClient(brokers, settings())
	if err != nil {
		return nil, err
	}
	defer client.Close()
	place := sarama.OffsetOldest
	if asked.Start.Offset != nil {
		place = *asked.Start.Offset
	} else if asked.Start.Time != nil {
		if place, err = client.GetOffset(asked.Topic, asked.Partition, *asked.Start.Time); err != nil {
			return nil, err
		}
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return nil, err
	}
	defer consumer.Close()
	partition, err := consumer.ConsumePartition(asked.Topic, asked.Partition, place)
	if err != nil {
		return nil, err
	}
	defer partition.AsyncClose()
	found := []lines.Record{}
	var problem error
	limit := time.After(time.Duration(asked.Timeout) * time.Millisecond)
	for len(found) < asked.Count {
		select {
		case message := <-partition.Messages():
			headers := []lines.Header{}
			for _, h := range message.Headers {
				headers = append(headers, lines.Header{Name: string(h.Key), Value: h.Value})
			}
			var timestamp *int64
			if !message.Timestamp.IsZero() {
				milliseconds := message.Timestamp.UnixMilli()
				timestamp = &milliseconds
			}
			found = append(found, lines.Record{
				Partition: message.Partition,
				Offset:    &message.Offset,
				Timestamp: timestamp,
				Key:       message.Key,
				Value:     message.Value,
				Headers:   headers,
			})
		case complaint := <-partition.Errors():
			// It goes on by itself; the broker may come back.
			problem = complaint
			fmt.Fprintln(os.Stderr, complaint)
		case <-limit:
			return found, problem
		}
	}
	return found, nil
}

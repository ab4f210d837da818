// franz-go, driven by JSON lines (see interop_kit/clients/driver.py).
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"ottla/interop/lines"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var bootstrap string

func main() {
	bootstrap = os.Args[1]
	lines.Serve(run)
}

func run(asked *lines.Request) (any, error) {
	limit, cancel := context.WithTimeout(context.Background(), 40*time.Second)
	defer cancel()
	switch asked.Command {
	case "create":
		return nil, withAdmin(func(admin *kadm.Client) error {
			config := asked.ConfigPointers()
			_, err := admin.CreateTopic(limit, asked.Partitions, 1, config, asked.Topic)
			return err
		})
	case "delete":
		return nil, withAdmin(func(admin *kadm.Client) error {
			answer, err := admin.DeleteTopics(limit, asked.Topic)
			if err != nil {
				return err
			}
			return answer.Error()
		})
	case "produce":
		return produce(limit, asked)
	case "consume":
		return consume(asked)
	case "offsets":
		return offsets(limit, asked)
	case "offset_for_time":
		return offsetForTime(limit, asked)
	case "read_to_end":
		return readToEnd(asked)
	}
	return nil, fmt.Errorf("no such command: %s", asked.Command)
}

func withAdmin(work func(*kadm.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		return err
	}
	defer client.Close()
	return work(kadm.NewClient(client))
}

func produce(limit context.Context, asked *lines.Request) (any, error) {
	codec := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}[asked.Codec]
	acks := map[string]kgo.Acks{
		"0": kgo.NoAck(), "1": kgo.LeaderAck(), "all": kgo.AllISRAcks(),
	}[asked.Acks]
	options := []kgo.Opt{
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchCompression(codec),
		kgo.RequiredAcks(acks),
		kgo.ProducerLinger(50 * time.Millisecond),
		kgo.AllowAutoTopicCreation(),
	}
	if !asked.Idempotent {
		options = append(options, kgo.DisableIdempotentWrite())
	}
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []*kgo.Record
	for _, given := range asked.Records {
		outgoing := &kgo.Record{
			Topic: asked.Topic, Partition: given.Partition, Key: given.Key, Value: given.Value,
		}
		if given.Timestamp != nil {
			outgoing.Timestamp = time.UnixMilli(*given.Timestamp)
		}
		for _, h := range given.Headers {
			outgoing.Headers = append(outgoing.Headers, kgo.RecordHeader{Key: h.Name, Value: h.Value})
		}
		records = append(records, outgoing)
	}
	if err := client.ProduceSync(limit, records...).FirstErr(); err != nil {
		return nil, err
	}
	given := []int64{}
	for _, sent := range records {
		if asked.Acks == "0" {
			given = append(given, -1)
		} else {
			given = append(given, sent.Offset)
		}
	}
	return given, nil
}

func consume(asked *lines.Request) (any, error) {
	limit, cancel := context.WithTimeout(
		context.Background(), time.Duration(asked.Timeout)*time.Millisecond)
	defer cancel()
	place := kgo.NewOffset().AtStart()
	if asked.Start.Offset != nil {
		place = kgo.NewOffset().At(*asked.Start.Offset)
	} else if asked.Start.Time != nil {
		place = kgo.NewOffset().AfterMilli(*asked.Start.Time)
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			asked.Topic: {asked.Partition: place},
		}),
		kgo.FetchMaxWait(100*time.Millisecond),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []lines.Record{}
	for len(found) < asked.Count && limit.Err() == nil {
		fetches := client.PollRecords(limit, asked.Count-len(found))
		if limit.Err() != nil {
			break
		}
		if err := fetches.Err(); err != nil {
			return nil, err
		}
		fetches.EachRecord(func(incoming *kgo.Record) {
			timestamp := incoming.Timestamp.UnixMilli()
			headers := []lines.Header{}
			for _, h := range incoming.Headers {
				headers = append(headers, lines.Header{Name: h.Key, Value: h.Value})
			}
			found = append(found, lines.Record{
				Partition: incoming.Partition,
				Offset:    &incoming.Offset,
				Timestamp: &timestamp,
				Key:       incoming.Key,
				Value:     incoming.Value,
				Headers:   headers,
			})
		})
	}
	return found, nil
}

// The client tells no position of partitions that it reads without a group: control records, which it
// keeps here, show how far it has got.
func readToEnd(asked *lines.Request) (any, error) {
	limit, cancel := context.WithTimeout(
		context.Background(), time.Duration(asked.Timeout)*time.Millisecond)
	defer cancel()
	both, err := offsets(limit, asked)
	if err != nil {
		return nil, err
	}
	end := both.([]int64)[1]
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(bootstrap, ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{
			asked.Topic: {asked.Partition: kgo.NewOffset().AtStart()},
		}),
		kgo.FetchMaxWait(100*time.Millisecond),
		kgo.KeepControlRecords(),
	)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	found := []int64{}
	position := int64(0)
	for position < end {
		fetches := client.PollFetches(limit)
		if err := fetches.Err(); err != nil {
			return nil, fmt.Errorf("at %d, the end is %d: %w", position, end, err)
		}
		fetches.EachRecord(func(incoming *kgo.Record) {
			if !incoming.Attrs.IsControl() {
				found = append(found, incoming.Offset)
			}
			position = incoming.Offset + 1
		})
	}
	return map[string]any{"offsets": found, "position": position}, nil
}

func offsets(limit context.Context, asked *lines.Request) (any, error) {
	both := []int64{}
	err := withAdmin(func(admin *kadm.Client) error {
		first, err := admin.ListStartOffsets(limit, asked.Topic)
		if err != nil {
			return err
		}
		following, err := admin.ListEndOffsets(limit, asked.Topic)
		if err != nil {
			return err
		}
		for _, listed := range []kadm.ListedOffsets{first, following} {
			found, _ := listed.Lookup(asked.Topic, asked.Partition)
			if found.Err != nil {
				return found.Err
			}
			both = append(both, found.Offset)
		}
		return nil
	})
	return both, err
}

// kadm answers with the end where no record is as young: the timestamp tells the two apart.
func offsetForTime(limit context.Context, asked *lines.Request) (any, error) {
	var offset *int64
	err := withAdmin(func(admin *kadm.Client) error {
		listed, err := admin.ListOffsetsAfterMilli(limit, asked.Time, asked.Topic)
		if err != nil {
			return err
		}
		found, _ := listed.Lookup(asked.Topic, asked.Partition)
		if found.Err == nil && found.Timestamp >= 0 {
			offset = &found.Offset
		}
		return found.Err
	})
	return offset, err
}

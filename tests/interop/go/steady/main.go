// The worker of interop_kit/steady.py with franz-go; see there for what it tells.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	tellEvery       = 500 * time.Millisecond
	pauseAfterError = time.Second
)

type settings struct {
	Bootstrap  string   `json:"bootstrap"`
	Topic      string   `json:"topic"`
	Topics     []string `json:"topics"`
	Group      string   `json:"group"`
	Partitions int32    `json:"partitions"`
	Rate       float64  `json:"rate"`
	Bytes      int      `json:"bytes"`
}

// ledger is what was written, acknowledged and read. One lock is for all of it, and for the output.
type ledger struct {
	turn         sync.Mutex
	written      []int64
	acknowledged []int64
	read         map[string][]int64
	again        int64
}

func (l *ledger) tell(event string, fields map[string]any) {
	line := map[string]any{"event": event}
	for name, value := range fields {
		line[name] = value
	}
	text, err := json.Marshal(line)
	if err != nil {
		panic(err)
	}
	os.Stdout.Write(append(text, '\n'))
}

func (l *ledger) tellState() {
	l.turn.Lock()
	defer l.turn.Unlock()
	l.tell("state", map[string]any{
		"written": l.written, "acknowledged": l.acknowledged, "read": l.read, "again": l.again,
	})
}

func (l *ledger) tellAlone(event string, fields map[string]any) {
	l.turn.Lock()
	defer l.turn.Unlock()
	l.tell(event, fields)
}

func (l *ledger) failed(call string, err error) {
	l.tellAlone("error", map[string]any{"call": call, "reason": err.Error()})
}

func (l *ledger) wrong(what string) {
	l.tell("wrong", map[string]any{"what": what})
}

func (l *ledger) acknowledge(partition int32, number, offset int64) {
	l.turn.Lock()
	defer l.turn.Unlock()
	if offset != number {
		l.wrong(fmt.Sprintf("%d/%d was acknowledged with offset %d", partition, number, offset))
	}
	l.acknowledged[partition]++
}

func (l *ledger) receive(record *kgo.Record) {
	l.turn.Lock()
	defer l.turn.Unlock()
	place := fmt.Sprintf("%s-%d", record.Topic, record.Partition)
	head, _, _ := bytes.Cut(record.Value, []byte(" "))
	number, err := strconv.ParseInt(string(head), 10, 64)
	if err != nil || number != record.Offset {
		l.wrong(fmt.Sprintf("%s has %s at offset %d", place, head, record.Offset))
	}
	following := l.read[record.Topic][record.Partition]
	if record.Offset > following {
		l.wrong(fmt.Sprintf("%s: %d was read after %d", place, record.Offset, following-1))
	}
	if record.Offset < following {
		l.again++
	} else {
		l.read[record.Topic][record.Partition] = record.Offset + 1
	}
}

func main() {
	var given settings
	if err := json.Unmarshal([]byte(os.Args[1]), &given); err != nil {
		panic(err)
	}
	known := &ledger{
		written:      make([]int64, given.Partitions),
		acknowledged: make([]int64, given.Partitions),
		read:         map[string][]int64{},
	}
	for _, topic := range given.Topics {
		known.read[topic] = make([]int64, given.Partitions)
	}
	enough, stopWriting := context.WithCancel(context.Background())
	leaving, leave := context.WithCancel(context.Background())
	var writer, others sync.WaitGroup
	writer.Go(func() { write(given, known, enough) })
	others.Go(func() { read(given, known, leaving) })
	others.Go(func() {
		for pause(leaving, tellEvery) {
			known.tellState()
		}
	})
	input := bufio.NewReader(os.Stdin)
	if _, err := input.ReadString('\n'); err == nil {
		stopWriting()
		writer.Wait()
		known.tellState()
		known.tellAlone("flushed", nil)
		io.Copy(io.Discard, input)
	}
	stopWriting()
	leave()
	writer.Wait()
	others.Wait()
}

// pause tells whether there is more to do.
func pause(until context.Context, length time.Duration) bool {
	select {
	case <-until.Done():
		return false
	case <-time.After(length):
		return true
	}
}

func write(given settings, known *ledger, enough context.Context) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(given.Bootstrap, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
	)
	if err != nil {
		known.failed("send", err)
		return
	}
	defer client.Close()
	rounds := time.Duration(float64(time.Second) * float64(given.Partitions) / given.Rate)
	for pause(enough, rounds) {
		for partition := range given.Partitions {
			known.turn.Lock()
			number := known.written[partition]
			known.written[partition]++
			known.turn.Unlock()
			value := bytes.Repeat([]byte("."), given.Bytes)
			copy(value, fmt.Sprintf("%d ", number))
			outgoing := &kgo.Record{Topic: given.Topic, Partition: partition, Value: value}
			client.Produce(context.Background(), outgoing, func(record *kgo.Record, err error) {
				if err != nil {
					known.failed("send", err)
				} else {
					known.acknowledge(record.Partition, number, record.Offset)
				}
			})
		}
	}
	if err := client.Flush(context.Background()); err != nil {
		known.failed("send", err)
	}
}

func read(given settings, known *ledger, leaving context.Context) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(given.Bootstrap, ",")...),
		kgo.ConsumerGroup(given.Group),
		kgo.ConsumeTopics(given.Topics...),
	)
	if err != nil {
		known.failed("poll", err)
		return
	}
	defer client.Close()
	for leaving.Err() == nil {
		fetches := client.PollFetches(leaving)
		if leaving.Err() != nil {
			return
		}
		fetches.EachError(func(topic string, partition int32, err error) {
			known.failed("poll", fmt.Errorf("%s-%d: %w", topic, partition, err))
			pause(leaving, pauseAfterError)
		})
		fetches.EachRecord(known.receive)
	}
}

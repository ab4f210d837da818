// Package lines is the protocol of interop_kit/clients/driver.py: one JSON line in, one JSON line out.
package lines

import (
	"bufio"
	"encoding/json"
	"os"
)

// Request holds the fields of every command; a command looks at its own.
type Request struct {
	Command    string            `json:"command"`
	Topic      string            `json:"topic"`
	Partitions int32             `json:"partitions"`
	Config     map[string]string `json:"config"`
	Codec      string            `json:"codec"`
	Acks       string            `json:"acks"`
	Idempotent bool              `json:"idempotent"`
	Records    []Record          `json:"records"`
	Partition  int32             `json:"partition"`
	Count      int               `json:"count"`
	Start      Start             `json:"start"`
	Time       int64             `json:"time"`
	Timeout    int64             `json:"timeout"`
}

// Start is an offset, a time, or (both nil) the earliest record.
type Start struct {
	Offset *int64 `json:"offset"`
	Time   *int64 `json:"time"`
}

// Record in JSON: a nil slice is null and an empty one is "", which is what its parts mean by it.
type Record struct {
	Partition int32    `json:"partition"`
	Offset    *int64   `json:"offset"`
	Timestamp *int64   `json:"timestamp"`
	Key       []byte   `json:"key"`
	Value     []byte   `json:"value"`
	Headers   []Header `json:"headers"`
}

// Header is a pair in JSON.
type Header struct {
	Name  string
	Value []byte
}

func (h Header) MarshalJSON() ([]byte, error) { return json.Marshal([]any{h.Name, h.Value}) }

func (h *Header) UnmarshalJSON(text []byte) error {
	return json.Unmarshal(text, &[]any{&h.Name, &h.Value})
}

// ConfigPointers is the configuration with values that may be absent, as the admin clients take it.
func (r *Request) ConfigPointers() map[string]*string {
	config := make(map[string]*string)
	for name, value := range r.Config {
		config[name] = &value
	}
	return config
}

// Serve answers requests until the input ends.
func Serve(run func(*Request) (any, error)) {
	input := bufio.NewReader(os.Stdin)
	output := json.NewEncoder(os.Stdout)
	for {
		line, err := input.ReadBytes('\n')
		if err != nil {
			return
		}
		var asked Request
		if err := json.Unmarshal(line, &asked); err != nil {
			panic(err)
		}
		result, err := run(&asked)
		if err != nil {
			output.Encode(map[string]string{"error": err.Error()})
		} else {
			output.Encode(map[string]any{"result": result})
		}
	}
}

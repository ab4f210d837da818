// franz-go over a secured listener: ten records there, and back by a consumer group.
//
// The options come as JSON on standard input, under librdkafka's names, with the topic among them. What
// was read is written to standard output, a line for each record.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const count = 10

func main() {
	var options map[string]string
	if err := json.NewDecoder(os.Stdin).Decode(&options); err != nil {
		fail(err)
	}
	if err := roundTrip(options); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

func roundTrip(options map[string]string) error {
	limit, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	secured, err := security(options)
	if err != nil {
		return err
	}
	topic := options["topic"]
	client, err := kgo.NewClient(append(secured,
		kgo.SeedBrokers(strings.Split(options["bootstrap.servers"], ",")...),
		kgo.AllowAutoTopicCreation(),
		kgo.DefaultProduceTopic(topic),
		kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)...)
	if err != nil {
		return err
	}
	defer client.Close()
	for number := range count {
		record := kgo.StringRecord(fmt.Sprint(number))
		if err := client.ProduceSync(limit, record).FirstErr(); err != nil {
			return err
		}
	}
	for read := 0; read < count; {
		fetched := client.PollFetches(limit)
		if limit.Err() != nil {
			return limit.Err()
		}
		for _, each := range fetched.Errors() {
			return each.Err
		}
		fetched.EachRecord(func(record *kgo.Record) {
			read++
			fmt.Println(string(record.Value))
		})
	}
	return nil
}

func security(options map[string]string) ([]kgo.Opt, error) {
	var chosen []kgo.Opt
	protocol := options["security.protocol"]
	if strings.HasSuffix(protocol, "SSL") {
		config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: x509.NewCertPool()}
		authorities, err := os.ReadFile(options["ssl.ca.location"])
		if err != nil {
			return nil, err
		}
		config.RootCAs.AppendCertsFromPEM(authorities)
		if file := options["ssl.certificate.location"]; file != "" {
			own, err := tls.LoadX509KeyPair(file, options["ssl.key.location"])
			if err != nil {
				return nil, err
			}
			config.Certificates = []tls.Certificate{own}
		}
		chosen = append(chosen, kgo.DialTLSConfig(config))
	}
	if strings.HasPrefix(protocol, "SASL_") {
		mechanism, err := mechanism(options)
		if err != nil {
			return nil, err
		}
		chosen = append(chosen, kgo.SASL(mechanism))
	}
	return chosen, nil
}

func mechanism(options map[string]string) (sasl.Mechanism, error) {
	user, password := options["sasl.username"], options["sasl.password"]
	switch name := options["sasl.mechanism"]; name {
	case "PLAIN":
		return plain.Auth{User: user, Pass: password}.AsMechanism(), nil
	case "SCRAM-SHA-256":
		return scram.Auth{User: user, Pass: password}.AsSha256Mechanism(), nil
	case "SCRAM-SHA-512":
		return scram.Auth{User: user, Pass: password}.AsSha512Mechanism(), nil
	case "OAUTHBEARER":
		return oauth.Oauth(func(limit context.Context) (oauth.Auth, error) {
			token, err := token(limit, options)
			return oauth.Auth{Token: token}, err
		}), nil
	default:
		return nil, fmt.Errorf("no such mechanism: %s", name)
	}
}

// token asks the token endpoint with the client's credentials.
func token(limit context.Context, options map[string]string) (string, error) {
	form := url.Values{"grant_type": {"client_credentials"}}
	endpoint := options["sasl.oauthbearer.token.endpoint.url"]
	request, err := http.NewRequestWithContext(
		limit, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.SetBasicAuth(
		options["sasl.oauthbearer.client.id"], options["sasl.oauthbearer.client.secret"])
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "", fmt.Errorf("no token: %s", answer.Status)
	}
	var found struct {
		Token string `json:"access_token"`
	}
	err = json.NewDecoder(answer.Body).Decode(&found)
	return found.Token, err
}

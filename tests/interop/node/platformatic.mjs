// @platformatic/kafka, driven by JSON lines (see interop_kit/clients/driver.py).
//
// Its streams read only as a member of a consumer group; its public `fetch` needs none, gives whole
// batches, and is what reads here ("consume_group" is the stream).
import { Admin, Consumer, MessagesStreamModes, Producer } from '@platformatic/kafka'
import { bytes, offsetsOf, serve, text } from './lines.mjs'

const common = { clientId: 'ottla-interop', bootstrapBrokers: process.argv[2].split(','), retries: 5, retryDelay: 100 }
const LOG_APPEND_TIME = 0x08 // in a batch's attributes
const ACKS = { all: -1, 1: 1, 0: 0 }

async function using (client, work) {
  try {
    return await work(client)
  } finally {
    await client.close()
  }
}

const withAdmin = work => using(new Admin(common), work)
const withConsumer = work => using(new Consumer({
  ...common, groupId: `interop-${process.pid}-${Date.now()}`, maxWaitTime: 100, autocommit: false
}), work)

async function listed (consumer, topic, partition, timestamp) {
  const options = { topics: [topic], partitions: { [topic]: [partition] }, timestamp }
  return (await consumer.listOffsetsWithTimestamps(options)).get(topic).get(partition)
}

function recordOf (partition, offset, timestamp, { key, value, headers }) {
  return {
    partition,
    offset: Number(offset),
    timestamp: Number(timestamp),
    key: text(key),
    value: text(value),
    headers: Array.from(headers, ([name, content]) => [name.toString(), text(content)])
  }
}

const commands = {
  create: ({ topic, partitions, config }) => withAdmin(admin => admin.createTopics({
    topics: [topic],
    partitions,
    replicas: 1,
    configs: Object.entries(config).map(([name, value]) => ({ name, value }))
  })).then(() => null),

  delete: ({ topic }) => withAdmin(admin => admin.deleteTopics({ topics: [topic] })).then(() => null),

  produce: ({ topic, codec, acks, idempotent, records }) => using(new Producer({ ...common, idempotent, autocreateTopics: true }), async producer => {
    const sent = await producer.send({
      acks: ACKS[acks],
      compression: codec,
      messages: records.map(({ partition, timestamp, key, value, headers }) => ({
        topic,
        partition,
        key: bytes(key) ?? undefined,
        value: bytes(value) ?? undefined,
        headers: new Map(headers.map(([name, content]) => [Buffer.from(name), bytes(content)])),
        ...(timestamp === null ? {} : { timestamp: BigInt(timestamp) })
      }))
    })
    if (acks === '0') return records.map(() => -1)
    return offsetsOf(records, sent.offsets.map(({ partition, offset }) => [partition, Number(offset)]))
  }),

  offsets: ({ topic, partition }) => withConsumer(async consumer => [
    Number((await listed(consumer, topic, partition, -2n)).offset),
    Number((await listed(consumer, topic, partition, -1n)).offset)
  ]),

  offset_for_time: ({ topic, partition, time }) => withConsumer(async consumer => {
    const { offset } = await listed(consumer, topic, partition, BigInt(time))
    return offset < 0n ? null : Number(offset)
  }),

  consume: ({ topic, partition, count, start, timeout }) => withConsumer(async consumer => {
    const deadline = Date.now() + timeout
    const metadata = await consumer.metadata({ topics: [topic] })
    const { id: topicId, partitions } = metadata.topics.get(topic)
    const { leader, leaderEpoch } = partitions[partition]
    let offset = BigInt(start.offset ?? 0)
    if (start.time !== undefined) {
      offset = (await listed(consumer, topic, partition, BigInt(start.time))).offset
    } else if (start.offset === undefined) {
      offset = (await listed(consumer, topic, partition, -2n)).offset
    }
    const found = []
    while (found.length < count && Date.now() < deadline) {
      const { responses } = await consumer.fetch({
        node: leader,
        minBytes: 1,
        maxBytes: 50_000_000,
        maxWaitTime: 100,
        topics: [{
          topicId,
          partitions: [{
            partition,
            currentLeaderEpoch: leaderEpoch,
            fetchOffset: offset,
            lastFetchedEpoch: -1,
            partitionMaxBytes: 1_000_000
          }]
        }]
      })
      for (const batch of responses[0]?.partitions[0].records ?? []) {
        const stampedByBroker = (batch.attributes & LOG_APPEND_TIME) !== 0
        for (const record of batch.records) {
          const at = batch.firstOffset + BigInt(record.offsetDelta)
          if (at < offset || found.length === count) continue
          const timestamp = stampedByBroker ? batch.maxTimestamp : batch.firstTimestamp + record.timestampDelta
          found.push(recordOf(partition, at, timestamp, record))
          offset = at + 1n
        }
      }
    }
    return found
  }),

  consume_group: ({ topic, partition, count, start, timeout }) => withConsumer(async consumer => {
    const stream = await consumer.consume({
      topics: [topic],
      mode: MessagesStreamModes.MANUAL,
      offsets: [{ topic, partition, offset: BigInt(start.offset ?? 0) }]
    })
    const found = []
    const timer = setTimeout(() => stream.close(), timeout)
    for await (const message of stream) {
      found.push(recordOf(message.partition, message.offset, message.timestamp, message))
      if (found.length === count) break
    }
    clearTimeout(timer)
    return found
  })
}

await serve(request => commands[request.command](request))

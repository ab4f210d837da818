// kafkajs, driven by JSON lines (see interop_kit/clients/driver.py).
//
// It reads only as a member of a consumer group. Of the codecs it has gzip itself; snappy comes
// from kafkajs-snappy, LZ4 from wasm-utils and Zstandard from Node, through its codec registry.
import zlib from 'node:zlib'
import { lz4Compress, lz4Decompress } from '@platformatic/wasm-utils'
import kafkajs from 'kafkajs'
import SnappyCodec from 'kafkajs-snappy'
import { bytes, offsetsOf, serve, text } from './lines.mjs'

const { CompressionCodecs, CompressionTypes, ConfigResourceTypes, Kafka, logLevel } = kafkajs
process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'

CompressionCodecs[CompressionTypes.Snappy] = SnappyCodec
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: async encoder => lz4Compress(encoder.buffer),
  decompress: async buffer => lz4Decompress(buffer)
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async encoder => zlib.zstdCompressSync(encoder.buffer),
  decompress: async buffer => zlib.zstdDecompressSync(buffer)
})

const CODECS = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD
}
const ACKS = { all: -1, 1: 1, 0: 0 }

const kafka = new Kafka({
  clientId: 'ottla-interop',
  brokers: process.argv[2].split(','),
  logLevel: logLevel.ERROR
})

async function withAdmin (work) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

function headersToSend (headers) {
  return Object.fromEntries(headers.map(([name, value]) => [name, bytes(value)]))
}

function headersReceived (headers) {
  return Object.entries(headers ?? {}).flatMap(([name, values]) =>
    (Array.isArray(values) ? values : [values]).map(value => [name, text(value)]))
}

const commands = {
  create: ({ topic, partitions, config }) => withAdmin(admin => admin.createTopics({
    waitForLeaders: true,
    topics: [{
      topic,
      numPartitions: partitions,
      replicationFactor: 1,
      configEntries: Object.entries(config).map(([name, value]) => ({ name, value }))
    }]
  })).then(() => null),

  delete: ({ topic }) => withAdmin(admin => admin.deleteTopics({ topics: [topic] })),

  async produce ({ topic, codec, acks, idempotent, records }) {
    const producer = kafka.producer({ idempotent, maxInFlightRequests: idempotent ? 1 : 5 })
    await producer.connect()
    try {
      const bases = new Map()
      // kafkajs asks no broker again that has answered (its issue 1303). If another one dies meanwhile, and
      // the first becomes the leader of its partitions, their records are not sent, and the call succeeds
      // without naming these partitions: they have to be sent once more.
      let left = records
      while (left.length > 0) {
        const sent = await producer.send({
          topic,
          acks: ACKS[acks],
          compression: CODECS[codec],
          messages: left.map(({ partition, timestamp, key, value, headers }) => ({
            partition,
            key: bytes(key),
            value: bytes(value),
            headers: headersToSend(headers),
            ...(timestamp === null ? {} : { timestamp: String(timestamp) })
          }))
        })
        if (acks === '0') return records.map(() => -1)
        for (const { partition, baseOffset } of sent) bases.set(partition, Number(baseOffset))
        left = left.filter(({ partition }) => !bases.has(partition))
      }
      return offsetsOf(records, bases)
    } finally {
      await producer.disconnect()
    }
  },

  async offsets ({ topic, partition }) {
    const all = await withAdmin(admin => admin.fetchTopicOffsets(topic))
    const { low, high } = all.find(one => one.partition === partition)
    return [Number(low), Number(high)]
  },

  // kafkajs answers with the end where no record is as young.
  async offset_for_time ({ topic, partition, time }) {
    return withAdmin(async admin => {
      const found = await admin.fetchTopicOffsetsByTimestamp(topic, time)
      const ends = await admin.fetchTopicOffsets(topic)
      const offset = Number(found.find(one => one.partition === partition).offset)
      const end = Number(ends.find(one => one.partition === partition).high)
      return offset === end ? null : offset
    })
  },

  async consume ({ topic, partition, count, start, timeout }) {
    let offset = start.offset ?? 0
    if (start.time !== undefined) {
      offset = await commands.offset_for_time({ topic, partition, time: start.time })
    }
    const consumer = kafka.consumer({ groupId: `interop-${process.pid}-${Date.now()}`, maxWaitTimeInMs: 100 })
    const found = []
    await consumer.connect()
    try {
      await consumer.subscribe({ topic, fromBeginning: true })
      await new Promise((resolve, reject) => {
        const timer = setTimeout(resolve, timeout)
        consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
        consumer.run({
          autoCommit: false,
          eachMessage: async ({ partition: from, message }) => {
            if (from !== partition || found.length === count) return
            found.push({
              partition: from,
              offset: Number(message.offset),
              timestamp: Number(message.timestamp),
              key: text(message.key),
              value: text(message.value),
              headers: headersReceived(message.headers)
            })
            if (found.length === count) {
              clearTimeout(timer)
              resolve()
            }
          }
        })
        consumer.seek({ topic, partition, offset: String(offset) })
      })
    } finally {
      await consumer.disconnect()
    }
    return found
  },

  // What else its admin client has, beyond the commands that every client answers.
  describe: ({ topic }) => withAdmin(async admin => {
    const { topics } = await admin.fetchTopicMetadata({ topics: [topic] })
    const { resources } = await admin.describeConfigs({
      includeSynonyms: false,
      resources: [{ type: ConfigResourceTypes.TOPIC, name: topic }]
    })
    const { brokers } = await admin.describeCluster()
    return {
      listed: (await admin.listTopics()).includes(topic),
      partitions: topics[0].partitions.map(({ partitionId }) => partitionId).sort(),
      config: Object.fromEntries(resources[0].configEntries.map(e => [e.configName, e.configValue])),
      brokers: brokers.map(({ host, port }) => `${host}:${port}`)
    }
  }),

  alter: ({ topic, config, partitions }) => withAdmin(async admin => {
    await admin.alterConfigs({
      validateOnly: false,
      resources: [{
        type: ConfigResourceTypes.TOPIC,
        name: topic,
        configEntries: Object.entries(config).map(([name, value]) => ({ name, value }))
      }]
    })
    await admin.createPartitions({ topicPartitions: [{ topic, count: partitions }] })
  }),

  delete_records: ({ topic, partition, offset }) => withAdmin(async admin => {
    await admin.fetchTopicOffsets(topic) // or it knows nothing of the topic
    await admin.deleteTopicRecords({ topic, partitions: [{ partition, offset: String(offset) }] })
  })
}

await serve(request => commands[request.command](request))

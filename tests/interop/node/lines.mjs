// The protocol of interop_kit/clients/driver.py: one JSON line in, one JSON line out.
import { createInterface } from 'node:readline'

export async function serve (run) {
  for await (const line of createInterface({ input: process.stdin })) {
    let answer
    try {
      answer = { result: (await run(JSON.parse(line))) ?? null }
    } catch (error) {
      console.error(error)
      answer = { error: String(error.message ?? error) }
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

export function bytes (text) {
  return text === null ? null : Buffer.from(text, 'base64')
}

export function text (data) {
  return data === null || data === undefined ? null : Buffer.from(data).toString('base64')
}

// Both libraries tell where the batch of each partition begins; records follow in their order.
export function offsetsOf (records, bases) {
  const next = new Map(bases)
  return records.map(({ partition }) => {
    const offset = next.get(partition)
    next.set(partition, offset + 1)
    return offset
  })
}

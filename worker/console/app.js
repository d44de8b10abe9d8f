// Shows /v1/sharded of this rank, which has the numbers of all, once a second.
'use strict'
const TIMES = { compute: 'compute', gather: 'receive', reduce: 'send', copy: 'exchange', activations: 'decode', agree: 'wait' } // and their colours
const KINDS = { parameters: 'compute', gradients: 'send', state: 'receive', activations: 'decode' }
const before = new Map() // by worker: the two last different numbers

const made = (name, text = '', kind = '') => {
  const node = document.createElement(name)
  node.textContent = text
  if (kind) node.className = kind
  return node
}
const set = (id, ...nodes) => document.getElementById(id).replaceChildren(...nodes)
const size = (bytes) => {
  let at = 0
  for (; bytes >= 1024 && at < 4; at++) bytes /= 1024
  return `${bytes.toFixed(at && bytes < 100 ? 1 : 0)} ${['B', 'KiB', 'MiB', 'GiB', 'TiB'][at]}`
}
const duration = (seconds) => seconds < 1 ? `${(1000 * seconds).toFixed(1)} ms` : seconds < 60 ? `${seconds.toFixed(1)} s` : `${Math.floor(seconds / 60)} min ${Math.floor(seconds % 60)} s`
const percent = (ratio) => `${(100 * ratio).toFixed(1)} %`
const number = (value) => value && Math.abs(value) < 1e-3 ? value.toExponential(2) : Number(value.toPrecision(5)).toLocaleString('en', { maximumSignificantDigits: 5 })

function table(id, names, rows) {
  const row = (cells, kind) => {
    const line = made('tr')
    for (const cell of cells) line.append(made(kind, cell))
    return line
  }
  set(id, row(names, 'th'), ...rows.map((cells) => row(cells, 'td')))
}

// A bar for each rank, of parts by name; `most` is as wide as the page.
function bars(id, colours, parts, shown) {
  const most = Math.max(...parts.map((one) => Object.values(one.of).reduce((a, b) => a + b, 0)), 1e-12)
  set(`${id}-key`, ...Object.entries(colours).map(([name, colour]) => {
    const pair = made('span', '', 'pair')
    pair.append(made('span', '', `swatch stage-${colour}`), ` ${name}`)
    return pair
  }))
  set(id, ...parts.map(({ name, of }) => {
    const line = made('div', '', 'bar'), svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg')
    svg.setAttribute('viewBox', '0 0 1000 10')
    svg.setAttribute('preserveAspectRatio', 'none')
    svg.setAttribute('role', 'img')
    svg.setAttribute('aria-label', `${name}: ${Object.entries(of).map(([kind, value]) => `${kind} ${shown(value)}`).join(', ')}`)
    let left = 0
    for (const [kind, colour] of Object.entries(colours)) {
      const rect = document.createElementNS(svg.namespaceURI, 'rect'), width = 1000 * (of[kind] ?? 0) / most
      for (const [key, value] of Object.entries({ x: left, width, height: 10, class: `stage-${colour}` })) rect.setAttribute(key, value)
      left += width
      svg.append(rect)
    }
    line.append(made('span', name), svg)
    return line
  }))
}

// What a rank did in a step, of those between its last two different numbers.
function step_of(rank) {
  let two = before.get(rank.worker) ?? [null, rank]
  if (two[1].steps > rank.steps) two = [null, rank] // another process
  if (two[1].steps < rank.steps) two = [two[1], rank]
  before.set(rank.worker, two)
  const [then, now] = two, steps = Math.max(now.steps - (then?.steps ?? 0), 1)
  const of = (get) => (get(now) - (then ? get(then) : 0)) / steps
  const times = { compute: of((one) => one.compute_seconds) }, bytes = {}
  for (const name of Object.keys(now.wait_seconds)) {
    times[name] = of((one) => one.wait_seconds[name])
    bytes[name] = of((one) => one.received_bytes[name])
  }
  return { times, bytes, seconds: of((one) => one.seconds) }
}

function part(rank) {
  if (rank.waits || !rank.shards) return 'waits'
  const layers = rank.layers ? `layers ${rank.first_layer}–${rank.first_layer + rank.layers - 1}, ` : ''
  return `${layers}shard ${rank.shard} of ${rank.shards}${rank.copied_shard === null ? '' : `, copy of ${rank.copied_shard}`}`
}

function show(job) {
  const badge = made('span', job.state, `badge ${{ training: 'good', ended: 'good' }[job.state] ?? 'warn'}`)
  const notes = [job.end, job.missing ? `${job.missing} ranks missing` : '', job.waiting_for ? `some wait for ${job.waiting_for}` : '']
  set('state', badge, ` ${notes.filter(Boolean).join('; ')}`)
  set('run', job.name)
  const steps = job.ranks.map(step_of), names = job.ranks.map((rank) => `${rank.rank} ${rank.name}`)
  set('step', job.step.toLocaleString('en'))
  set('loss', number(job.loss))
  set('time', duration(Math.max(0, ...steps.map((one) => one.seconds))))
  set('ranks', `${job.world}, ${job.generation}`)
  set('sharding', `${job.sharding}, ${job.mesh.replaceAll(',', ', ')}`)
  table('parts', ['Rank', 'Worker', 'Has', 'Parameters'], job.ranks.map((rank) => [rank.rank, rank.name, part(rank), number(rank.elements)]))
  bars('times', TIMES, steps.map((one, at) => ({ name: names[at], of: one.times })), duration)
  const moved = ['gather', 'reduce', 'copy', 'activations']
  table('moves', ['Rank', ...moved.map((name) => `Received by ${name}`), 'Bubble'], job.ranks.map((rank, at) =>
    [rank.rank, ...moved.map((name) => `${size(steps[at].bytes[name])} in ${duration(steps[at].times[name])}`), percent(rank.bubble_ratio)]))
  bars('memory', KINDS, job.ranks.map((rank, at) => ({ name: `${names[at]}: ${size(rank.memory_bytes.process)}`, of: { ...rank.memory_bytes, process: 0 } })), size)
  table('changes', ['When', 'Lost', 'Joined', 'Ranks', 'Go on from', 'After'], [...job.changes].reverse().map((one) =>
    [new Date(1000 * one.unix_seconds).toLocaleTimeString(), one.lost.join(', '), one.joined.join(', '), one.world, `step ${one.step}, ${one.from}`, duration(one.seconds)]))
}

async function look() {
  try {
    const reply = await fetch('v1/sharded', { cache: 'no-store' })
    show(await reply.json())
  } catch (error) {
    set('state', made('span', 'no answer', 'badge bad'), ` ${error.message}`)
  }
  setTimeout(look, 1000)
}
look()

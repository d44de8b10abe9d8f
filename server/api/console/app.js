// The console: asks the REST interface once a second and shows what it says. No framework, nothing from elsewhere.
'use strict'

const POLL_MS = 1000
const ROUNDS = 60 // in the timeline
const SMOOTHED = 10 // points on each side
const EVENTS = 30 // shown
const SHOWN_TYPES = 'member,generation,job,checkpoint,config,scale,wait,round.skipped,round.aborted' // what the curves do not tell
const SVG = 'http://www.w3.org/2000/svg'

const find = (id) => document.getElementById(id)
let cluster = null
let tick = 0
let course = null // of the whole job: what /v1/curves has said
let sums = { at: 0, workers: new Map(), server: new Map() } // of the look before

// ---- REST ----

async function call(path, method = 'GET', isText = false) {
  const headers = { Accept: isText ? 'text/plain' : 'application/json' }
  const token = sessionStorage.getItem('token')
  if (token) headers.Authorization = 'Bearer ' + token
  const answer = await fetch(path, { method, headers, cache: 'no-store' })
  const body = isText && answer.ok ? await answer.text() : await answer.json()
  if (answer.status === 401) askToken(Boolean(token))
  if (!answer.ok) throw new Error(body.detail || 'status ' + answer.status)
  return body
}

function askToken(wasRefused = false) {
  find('refused').hidden = !wasRefused
  if (!find('ask').open) find('ask').showModal()
}

function notice(text) {
  find('notice').textContent = text
  find('notice').hidden = !text
}

async function act(path, method = 'POST') {
  try {
    await call(path, method)
    notice('')
    await refresh()
  } catch (error) {
    notice(error.message)
  }
}

// ---- text ----

// What would be a long row of zeros has an exponent.
function number(value, digits = 4) {
  if (!Number.isFinite(value)) return '–'
  const isLong = value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e9)
  if (isLong) return Number(value.toPrecision(3)).toExponential()
  return Number(value.toPrecision(digits)).toLocaleString('en', { maximumSignificantDigits: 15 })
}

const percent = (share) => (share >= 0 ? (100 * share).toFixed(2) + ' %' : '–')

function size(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB']
  let unit = 0
  for (; bytes >= 1024 && unit < 4; unit++) bytes /= 1024
  return bytes.toFixed(unit ? 1 : 0) + ' ' + units[unit]
}

function duration(seconds) {
  if (!Number.isFinite(seconds)) return '–'
  if (seconds < 1) return (1000 * seconds).toFixed(1) + ' ms'
  if (seconds < 60) return seconds.toFixed(1) + ' s'
  return Math.floor(seconds / 60) + ' min ' + String(Math.floor(seconds % 60)).padStart(2, '0') + ' s'
}

function tone(state) {
  if (['training', 'active', 'finished', 'committed', 'leader', 'serving', 'standby'].includes(state)) return 'good'
  return ['halted', 'dead', 'fenced', 'aborted'].includes(state) ? 'bad' : 'warn'
}

// ---- elements ----

function make(name, attributes = {}, ...children) {
  const isSvg = ['svg', 'line', 'circle', 'text', 'rect', 'g', 'title'].includes(name)
  const element = isSvg ? document.createElementNS(SVG, name) : document.createElement(name)
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value)
  element.append(...children)
  return element
}

// Rows of a table body, changed in place so that focus and selection stay. An element stays only if it is the one of before.
function fill(id, rows, none) {
  const body = find(id)
  const isEmpty = !rows.length
  if (isEmpty) rows = [[none]]
  while (body.rows.length > rows.length) body.deleteRow(-1)
  rows.forEach((cells, i) => {
    const row = body.rows[i] || body.insertRow()
    while (row.cells.length > cells.length) row.deleteCell(-1)
    cells.forEach((content, k) => {
      const cell = row.cells[k] || row.insertCell()
      cell.colSpan = isEmpty ? 20 : 1
      if (content instanceof Node) { if (content.parentNode !== cell) cell.replaceChildren(content) }
      else if (cell.firstElementChild || cell.textContent !== String(content)) cell.textContent = content
      if (k > 1 || typeof content === 'string') cell.classList.toggle('text', String(content).length > 40)
    })
  })
}

const badge = (state) => make('span', { class: 'badge ' + tone(state) }, state)

function shares(worker) {
  const all = worker.compute_seconds + worker.wait_seconds || 1
  const part = (100 * worker.compute_seconds) / all
  const text = Math.round(part) + ' % computing, ' + Math.round(100 - part) + ' % waiting'
  return make('svg', { viewBox: '0 0 100 8', preserveAspectRatio: 'none', role: 'img', 'aria-label': text },
    make('title', {}, text),
    make('rect', { class: 'compute', x: 0, y: 0, width: part, height: 8 }),
    make('rect', { class: 'wait', x: part, y: 0, width: 100 - part, height: 8 }))
}

// ---- where the time goes ----

const STAGES = ['compute', 'wait', 'encode', 'send', 'exchange', 'decode', 'receive', 'aggregate', 'apply', 'journal']
const OF_WORKERS = ['compute', 'wait', 'encode', 'send', 'exchange', 'decode', 'apply', 'receive'] // what REST has of each

// Sums of the server's stages, out of what Prometheus gets.
async function serverStages() {
  const text = await call('/metrics', 'GET', true)
  const found = new Map()
  for (const [, stage, value] of text.matchAll(/^centroid_server_stage_seconds_sum\{stage="(\w+)"\} (\S+)$/gm)) found.set(stage, Number(value))
  return found
}

// One bar: parts of [stage, seconds per second], of at most `most`.
function stageBar(name, parts, most) {
  const text = parts.map(([stage, share]) => `${stage} ${percent(share)}`).join(', ') || 'no time yet'
  const svg = make('svg', { viewBox: '0 0 100 8', preserveAspectRatio: 'none', role: 'img', 'aria-label': `${name}: ${text}` }, make('title', {}, `${name}: ${text}`))
  let x = 0
  for (const [stage, share] of parts) {
    const width = (100 * share) / most
    svg.append(make('rect', { class: 'stage-' + stage, x, y: 0, width, height: 8 }))
    x += width
  }
  return make('div', { class: 'bar' }, make('span', {}, name), svg)
}

async function stages(workers) {
  const at = performance.now() / 1000
  const now = { at, workers: new Map(workers.map((w) => [w.member, w])), server: await serverStages() }
  const seconds = at - sums.at
  const rows = []
  for (const worker of workers) {
    const before = sums.workers.get(worker.member)
    if (!before || ['left', 'dead', 'fenced'].includes(worker.state)) continue
    const spent = OF_WORKERS.map((stage) => [stage, worker[stage + '_seconds'] - before[stage + '_seconds']])
    rows.push([worker.name, spent.filter(([, time]) => time > 0).map(([stage, time]) => [stage, time / seconds])])
  }
  if (sums.server.size) rows.unshift(['server', [...now.server].map(([stage, sum]) => [stage, Math.max(0, sum - (sums.server.get(stage) || 0)) / seconds])])
  sums = now
  if (!rows.length) return
  const most = Math.max(1, ...rows.map(([, parts]) => parts.reduce((sum, [, share]) => sum + share, 0)))
  find('stages').replaceChildren(...rows.map(([name, parts]) => stageBar(name, parts, most)))
  const used = STAGES.filter((stage) => rows.some(([, parts]) => parts.some(([name]) => name === stage)))
  find('stages-key').replaceChildren(...used.flatMap((stage) => [make('span', { class: 'pair' }, make('span', { class: 'swatch stage-' + stage }), ' ' + stage)]))
}

const buttons = new Map() // by what they do: a new one each second would lose the focus, and half of a click

function actButton(word, name, path, method) {
  const key = `${method} ${path}`
  if (!buttons.has(key)) {
    const button = make('button', { type: 'button', 'aria-label': `${word} ${name}` }, word)
    button.addEventListener('click', () => act(path, method))
    buttons.set(key, button)
  }
  return buttons.get(key)
}

function drainButton(worker) {
  const button = actButton('Drain', worker.name, `/v1/workers/${worker.member}:drain`, 'POST')
  button.disabled = !['active', 'syncing', 'joining'].includes(worker.state)
  return button
}

// ---- what happened ----

const shown_events = [] // newest first
let last_id = null // id of the last event that was looked at

const moment = (seconds) => new Date(1000 * seconds).toLocaleTimeString()

function eventText(event) {
  const { id, type, unix_seconds, ...rest } = event
  const text = (value) => (Number.isInteger(value) ? value : typeof value === 'number' ? number(value) : typeof value === 'object' ? JSON.stringify(value) : value)
  return Object.entries(rest).filter(([, value]) => value !== '').map(([key, value]) => `${key} ${text(value)}`).join(', ')
}

async function listen() {
  if (last_id === null) last_id = Math.max(0, (await call('/v1/events?limit=1')).last - 2000)
  const { events, last, next } = await call(`/v1/events?since=${last_id}&limit=1000&type=${SHOWN_TYPES}`)
  shown_events.unshift(...events.reverse())
  shown_events.length = Math.min(shown_events.length, EVENTS)
  last_id = next && shown_events.length ? shown_events[0].id : last
  fill('events', shown_events.map((event) => [moment(event.unix_seconds), event.type, eventText(event)]), 'nothing yet')
}

async function showEvictions() {
  const { evictions } = await call('/v1/evictions')
  fill('evictions', evictions.map((one) => [one.name, one.why || '–', one.until_unix_seconds ? moment(one.until_unix_seconds) : 'it is allowed',
    actButton('Allow', one.name, '/v1/evictions/' + encodeURIComponent(one.name), 'DELETE')]), 'no name is refused')
}

// Present workers round the server; with ring and hierarchical, round each other.
function picture(workers, missing) {
  const present = workers.filter((w) => !['left', 'dead', 'fenced'].includes(w.state)).sort((a, b) => a.rank - b.rank)
  const isStar = cluster.exchange === 'star'
  const at = present.map((_, i) => {
    const angle = (2 * Math.PI * i) / Math.max(1, present.length) - Math.PI / 2
    return [180 + 130 * Math.cos(angle), 125 + 85 * Math.sin(angle)]
  })
  const summary = present.length + ' workers present, exchange ' + cluster.exchange
  const svg = make('svg', { viewBox: '0 0 360 250', role: 'img', 'aria-label': summary }, make('title', {}, summary))
  present.forEach((worker, i) => {
    const to = isStar ? [180, 125] : at[(i + 1) % at.length]
    const waits = missing.includes(worker.name) ? 'waiting' : ''
    svg.append(make('line', { x1: at[i][0], y1: at[i][1], x2: to[0], y2: to[1], class: waits }))
  })
  svg.append(make('g', { class: tone(cluster.state) }, make('circle', { cx: 180, cy: 125, r: 24 }), make('text', { x: 180, y: 129 }, 'server')))
  present.forEach((worker, i) => {
    const name = worker.name.length > 14 ? worker.name.slice(0, 13) + '…' : worker.name
    svg.append(make('g', { class: tone(worker.state) }, make('circle', { cx: at[i][0], cy: at[i][1], r: 13 }),
      make('text', { x: at[i][0], y: at[i][1] + 27 }, name)))
  })
  find('picture').replaceChildren(svg)
}

function timeline(rounds) {
  const shown = rounds.slice(0, ROUNDS).reverse()
  const most = Math.max(1e-9, ...shown.map((round) => round.seconds))
  const summary = `${shown.length} rounds, the longest took ${duration(most)}`
  const svg = make('svg', { viewBox: `0 0 ${10 * ROUNDS} 80`, preserveAspectRatio: 'none' })
  shown.forEach((round, i) => {
    const height = Math.max(3, (78 * round.seconds) / most)
    const kind = round.outcome || 'open'
    const text = `round ${round.round}: ${kind}, ${duration(round.seconds)}` + (round.missing.length ? ', without ' + round.missing.join(' ') : '')
    svg.append(make('rect', { class: kind, x: 10 * i + 1, y: 80 - height, width: 8, height }, make('title', {}, text)))
  })
  find('timeline').replaceChildren(svg)
  find('timeline').setAttribute('aria-label', summary)
}

// ---- curves ----

// By chart: its axis, and lines of [name, colour, field of a point, how it is drawn].
const CURVES = {
  'loss-chart': { name: 'Loss', axis: 'loss', canLog: true, lines: [['training', '--accent', 'loss', 'noisy'], ['held-out', '--warn', 'test_loss', 'seldom']] },
  'accuracy-chart': { name: 'Accuracy', axis: 'accuracy (%)', isShare: true, lines: [['training', '--accent', 'accuracy', 'noisy'], ['held-out', '--warn', 'test_accuracy', 'seldom']] },
  'rate-chart': { name: 'Speed', axis: 'samples/s', fromZero: true, lines: [['samples per second', '--accent', 'samples_per_second', 'noisy'], ['workers', '--warn', 'workers', 'steps']] },
  'time-chart': { name: 'Time of a round', axis: 'seconds', fromZero: true, lines: [['a round', '--accent', 'round_seconds', 'noisy']] },
  'lr-chart': { name: 'Learning rate', axis: 'learning rate', fromZero: true, lines: [['learning rate', '--accent', 'learning_rate', 'plain']] },
  'norm-chart': { name: 'Gradient norm', axis: 'norm', canLog: true, fromZero: true, lines: [['gradient norm', '--accent', 'gradient_norm', 'noisy']], none: 'Measured only with clip_norm above 0.' },
}
const TIMES = [[1, 'seconds'], [60, 'minutes'], [3600, 'hours'], [86400, 'days']]
const charts = {}
const chosen = { byTime: sessionStorage.getItem('byTime') === 'true', log: sessionStorage.getItem('log') === 'true' }

// The points behind those that are known; all, where they have changed or the server is another one.
async function follow() {
  const last = course && course.points.at(-1)
  const answer = await call('/v1/curves?after=' + (last ? last.first - 1 : 0))
  if (!last) course = answer
  else if (answer.revision === course.revision) course.points.splice(-1, 1, ...answer.points)
  else course = await call('/v1/curves')
}

// Mean of each value and its neighbours; the noise of single rounds hides the course.
function smooth(values) {
  return values.map((value, i) => {
    if (value === null) return null
    const side = Math.min(SMOOTHED, i)
    const near = values.slice(i - side, i + side + 1).filter((one) => one !== null)
    return near.reduce((sum, one) => sum + one, 0) / near.length
  })
}

// Beside an axis there is little place.
function tickText(tick, isShare) {
  if (tick === null) return ''
  if (isShare) return number(100 * tick)
  if (Math.abs(tick) < 1e4 || Math.abs(tick) >= 1e9) return number(tick, 6)
  return Math.abs(tick) < 1e6 ? number(tick / 1e3) + 'k' : number(tick / 1e6) + 'M'
}

// Of an axis: the bounds for values from low to high.
function bounds(curve, isLog, low, high) {
  if (low === null || high === null) return isLog ? [0.1, 1] : [0, 1]
  if (isLog) return uPlot.rangeLog(low, high, 10, false)
  if (curve.isShare) return [Math.max(0, low - 0.02), Math.min(1.01, high + 0.01)]
  if (!curve.fromZero) return uPlot.rangeNum(low, high, { min: { pad: 0.1 }, max: { pad: 0.1 } })
  return [Math.min(0, low), high > 0 ? 1.08 * high : 1]
}

function plotOptions(id, place, isLog, axisOfTime) {
  const curve = CURVES[id]
  const style = getComputedStyle(document.documentElement)
  const colour = (name) => style.getPropertyValue(name).trim()
  const line = { stroke: colour('--faint'), grid: { stroke: colour('--line'), width: 1 }, ticks: { stroke: colour('--line'), size: 5 }, font: '11px system-ui, sans-serif', labelFont: '11px system-ui, sans-serif', labelSize: 16, labelGap: 0, gap: 4 }
  const series = [{}]
  for (const [label, name, , kind] of curve.lines) {
    const one = { label, stroke: colour(name), width: 2, points: { show: kind === 'seldom', size: 5 }, spanGaps: true, scale: kind === 'steps' ? 'count' : 'y' }
    if (kind === 'noisy') series.push({ ...one, alpha: 0.3, width: 1 })
    if (kind === 'steps') Object.assign(one, { paths: uPlot.paths.stepped({ align: -1 }), width: 1.5, dash: [6, 3] })
    series.push(one)
  }
  const hasCount = curve.lines.some(([, , , kind]) => kind === 'steps')
  const scales = { x: { time: false }, y: { distr: isLog ? 3 : 1, range: (_, low, high) => bounds(curve, isLog, low, high) } }
  if (hasCount) scales.count = { range: (_, low, high) => [0, Math.ceil(1.25 * (high || 1))] }
  const axes = [{ ...line, size: 28, label: axisOfTime || 'round', values: (_, ticks) => ticks.map((tick) => tickText(tick)), incrs: axisOfTime ? undefined : [1, 2, 5].flatMap((one) => [...Array(12).keys()].map((k) => one * 10 ** k)).sort((a, b) => a - b) },
    { ...line, size: (_, ticks) => 12 + 6.5 * Math.max(3, ...(ticks || []).map((tick) => tick.length)), label: curve.axis, values: (_, ticks) => ticks.map((tick) => tickText(tick, curve.isShare)) }]
  if (hasCount) axes.push({ ...line, scale: 'count', side: 1, size: 30, label: 'workers', grid: { show: false }, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000], values: (_, ticks) => ticks.map((tick) => tickText(tick)) })
  return { width: Math.max(200, place.clientWidth), height: place.closest('.large') ? 260 : 200, padding: [8, hasCount ? 0 : 12, 0, 0], scales, axes, series, legend: { show: false },
    cursor: { sync: { key: 'curves' }, points: { size: 6 } }, hooks: { setCursor: [(plot) => showTip(id, plot)], setScale: [(plot, key) => { if (key === 'x') charts[id] && (charts[id].isZoomed = isZoomed(plot)) }] } }
}

const isZoomed = (plot) => plot.data[0].length > 1 && (plot.scales.x.min > plot.data[0][0] || plot.scales.x.max < plot.data[0].at(-1))

// What the point under the pointer has.
function showTip(id, plot) {
  const place = find(id)
  const tip = place.querySelector('.tip') || place.appendChild(make('div', { class: 'tip' }))
  const index = plot.cursor.idx
  const point = course && index !== null && index !== undefined && course.points[index]
  tip.hidden = !point || plot.cursor.left < 0 || !plot.over.matches(':hover')
  if (tip.hidden) return
  const { lines, isShare } = CURVES[id]
  const rounds = point.first === point.last ? `round ${point.first.toLocaleString('en')}` : `rounds ${point.first.toLocaleString('en')} to ${point.last.toLocaleString('en')}`
  tip.replaceChildren(make('b', {}, rounds), make('div', {}, `after ${duration(point.seconds)}, ${new Date(1000 * point.unix_seconds).toLocaleString()}`),
    ...lines.filter(([, , field]) => point[field] !== null).map(([label, colour, field]) => make('div', {}, make('span', { class: 'swatch of' + colour }), ` ${label} `,
      make('b', {}, isShare ? percent(point[field]) : field === 'round_seconds' ? duration(point[field]) : number(point[field])))))
  const left = plot.over.offsetLeft + plot.cursor.left
  const isRight = left > place.clientWidth / 2
  tip.style.left = isRight ? 'auto' : left + 12 + 'px'
  tip.style.right = isRight ? place.clientWidth - left + 12 + 'px' : 'auto'
}

function draw(id, points, x, axisOfTime) {
  const curve = CURVES[id]
  const place = find(id)
  const all = curve.lines.map(([, , field]) => points.map((point) => point[field]))
  const isLog = Boolean(curve.canLog && chosen.log && all.flat().every((value) => value === null || value > 0))
  const data = [x]
  curve.lines.forEach(([, , , kind], i) => data.push(all[i], ...(kind === 'noisy' ? [smooth(all[i])] : [])))
  place.classList.toggle('none', !all.flat().some((value) => value !== null))
  place.dataset.none = points.length ? curve.none || 'Nothing is known of it.' : 'No round has been committed yet.'
  const key = [getComputedStyle(document.documentElement).getPropertyValue('--faint'), place.clientWidth, isLog, axisOfTime].join()
  const before = charts[id]
  if (!before || before.key !== key) {
    if (before) before.plot.destroy()
    charts[id] = { key, isZoomed: false, plot: new uPlot(plotOptions(id, place, isLog, axisOfTime), data, place) }
  } else if (before.isZoomed) {
    const { min, max } = before.plot.scales.x
    before.plot.batch(() => {
      before.plot.setData(data, false)
      before.plot.setScale('x', { min, max })
    })
  } else before.plot.setData(data)
  const now = curve.lines.map(([label], i) => [label, all[i].findLast((value) => value !== null)]).filter(([, value]) => value !== undefined)
  place.setAttribute('aria-label', `${curve.name} by ${axisOfTime || 'round'}, now ${now.map(([label, value]) => `${label} ${curve.isShare ? percent(value) : number(value)}`).join(', ') || 'nothing'}`)
}

function drawCurves() {
  const { points } = course
  const seconds = points.length ? points.at(-1).seconds : 0
  const [unit, name] = TIMES.findLast(([one]) => seconds >= 2 * one) || TIMES[0]
  const x = points.map((point) => (chosen.byTime ? point.seconds / unit : point.last))
  for (const id of Object.keys(CURVES)) draw(id, points, x, chosen.byTime ? name + ' of training' : '')
  for (const [id, is] of [['by-round', !chosen.byTime], ['by-time', chosen.byTime], ['log', chosen.log]]) find(id).setAttribute('aria-pressed', is)
  const most = Math.max(0, ...points.map((point) => point.rounds))
  const since = points.length && points[0].first > 1 ? `Of rounds before ${points[0].first.toLocaleString('en')} this server knows nothing. ` : ''
  find('span').textContent = since + (most > 1 ? `A point is the mean of up to ${most.toLocaleString('en')} rounds. ` : '') + 'Thick lines are means of neighbours. Drag to zoom, double-click to see all.'
}

function choose(name, value) {
  chosen[name] = value
  sessionStorage.setItem(name, value)
  if (course) drawCurves()
}

// ---- the page ----

function show(workers, waits, rounds) {
  find('run').textContent = cluster.run_id
  const why = cluster.state_reason ? ' ' + cluster.state_reason : ''
  find('leader').hidden = !cluster.leader_api
  find('leader').href = cluster.leader_api ? `${location.protocol}//${cluster.leader_api}/` : '#'
  find('leader').textContent = cluster.leader_api ? `The leader ${cluster.leader} at ${cluster.leader_api}` : ''
  const state = find('state')
  if (state.dataset.shown !== cluster.state + why) {
    state.replaceChildren(badge(cluster.state), why)
    state.dataset.shown = cluster.state + why
  }
  find('progress').textContent = percent(cluster.progress)
  find('round').textContent = cluster.round.toLocaleString('en')
  find('loss').textContent = number(cluster.loss)
  find('accuracy').textContent = percent(cluster.test_accuracy)
  find('speed').textContent = number(cluster.samples_per_second, 3)
  find('generation').textContent = `${cluster.generation} · ${cluster.world}`
  const isOver = ['finished', 'halted', 'stopping'].includes(cluster.state)
  const isHeld = ['paused', 'stopped', 'halted'].includes(cluster.state)
  find('pause').disabled = isOver || isHeld
  find('stop').disabled = isOver
  find('resume').disabled = !isHeld
  fill('workers', workers.map((w) => [w.name, badge(w.state), w.rank < 0 ? '–' : w.rank, w.rounds.toLocaleString('en'), w.samples.toLocaleString('en'),
    shares(w), size(w.bytes_in), size(w.bytes_out), drainButton(w)]), 'no worker has joined yet')
  fill('waits', waits.map((w) => [w.waiter, w.waits_for, w.what, duration(w.seconds)]), 'nobody waits')
  const open = rounds.find((round) => !round.outcome)
  picture(workers, open && open.seconds > 1 ? open.missing : [])
  timeline(rounds)
  drawCurves()
}

async function look() {
  const [now, workers, waits, rounds] = await Promise.all([call('/v1/cluster'), call('/v1/workers'), call('/v1/waits'), call('/v1/rounds?limit=' + (ROUNDS + 1))])
  const isSame = (a, b) => a.run_id === b.run_id && a.term === b.term && a.uptime_seconds <= b.uptime_seconds
  if (cluster && !isSame(cluster, now)) course = null // it was started again, or another server leads
  cluster = now
  await follow()
  workers.workers.sort((a, b) => (b.rank >= 0) - (a.rank >= 0) || a.name.localeCompare(b.name) || b.member - a.member)
  show(workers.workers, waits.waits, rounds.rounds)
  if (tick % 5 === 0 || tick === 1) {
    const { checkpoints } = await call('/v1/checkpoints')
    const { servers } = await call('/v1/servers')
    find('more-servers').hidden = servers.length < 2
    fill('servers', servers.map((s) => [s.name, badge(s.state), s.chunks.toLocaleString('en'), size(s.memory_bytes), s.endpoint, s.api || '–',
      s.seen_unix_seconds ? new Date(1000 * s.seen_unix_seconds).toLocaleTimeString() : '–']), 'this one only')
    await stages(workers.workers)
    fill('checkpoints', checkpoints.map((c) => [c.version, c.round, new Date(1000 * c.created_unix_seconds).toLocaleString(), size(c.bytes), c.problem || '–']),
      'none yet')
    await listen()
    await showEvictions()
  }
  tick++
}

let looking = Promise.resolve()

// One look at a time: two beside each other, of the clock and of a click, would take the same events.
function refresh() {
  looking = looking.catch(() => {}).then(look)
  return looking
}

let wasUnreachable = false

async function poll() {
  try {
    if (!document.hidden && !find('ask').open) {
      await refresh()
      if (wasUnreachable) notice('')
      wasUnreachable = false
    }
  } catch (error) {
    wasUnreachable = true
    notice('The server was not asked: ' + error.message)
  }
  setTimeout(poll, POLL_MS)
}

document.addEventListener('visibilitychange', () => document.hidden || find('ask').open || refresh().catch(() => {})) // timers of hidden pages are slow
find('by-round').addEventListener('click', () => choose('byTime', false))
find('by-time').addEventListener('click', () => choose('byTime', true))
find('log').addEventListener('click', () => choose('log', !chosen.log))
find('pause').addEventListener('click', () => act('/v1/job:pause'))
find('resume').addEventListener('click', () => act('/v1/job:resume'))
find('checkpoint').addEventListener('click', () => {
  tick = 5
  act('/v1/checkpoints')
})
find('stop').addEventListener('click', () => {
  find('sure').returnValue = '' // of the time before, which Escape would leave
  find('sure').showModal()
})
find('sure').addEventListener('close', () => find('sure').returnValue === 'stop' && act('/v1/job:stop'))
find('token').addEventListener('click', () => askToken())
find('ask').addEventListener('close', () => {
  const secret = find('secret').value
  if (secret) sessionStorage.setItem('token', secret)
  find('secret').value = ''
})
poll()

// The console in Chromium: node console_check.mjs PACKAGES CHROMIUM URL OUT TOKEN [restore | frozen | tiny | curves]. Prints one JSON object of what was seen, and writes
// pictures of dark, light and narrow into OUT. With `restore` only what curves show when the job goes back to a checkpoint, with `frozen` only what
// the picture of the cluster shows of a round that waits for somebody, with `tiny` only how a narrow page shows a loss near 0 or beyond all bounds, with
// `curves` only what the curves do.
import { rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [, , packages, executablePath, url, out, token, part = 'all'] = process.argv
const loader = path.join(path.resolve(packages), `load-${process.pid}.mjs`) // of its own: others write theirs at the same time
writeFileSync(loader, 'export const load = (name) => import(name)\n')
const { load } = await import(pathToFileURL(loader))
rmSync(loader)
const { chromium } = (await load('playwright-core')).default
const { AxeBuilder } = await load('@axe-core/playwright')

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'] })
const seen = { errors: [], foreign: [], bytes: 0, views: {}, axe: {} }
const PAINTS = 3
const DEADLINE = 180000 // of what is waited for, in milliseconds
const STAGE_SECONDS = 100 // over which the bars are made to show all that the stages took

// As the page's own requests, for what is compared with it.
const authorization = { Authorization: 'Bearer ' + token }
const rest = async (name) => (await fetch(new URL('/v1/' + name, url), { headers: authorization })).json()
const text = (page, id) => page.textContent('#' + id)
const rows = (page, id) => page.$$eval(`#${id} tr`, (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)))
const isIn = (page, word) => page.waitForFunction((state) => document.querySelector('#state').textContent.includes(state), word)

// Notes what goes wrong in a page, but for messages that the caller expects, and what it asks of others.
// Chromium ends requests when another program adds a network interface; the page asks again.
function watch(page, isExpected = () => false) {
  const isIgnored = (message) => seen.isStopped || message.text().includes('ERR_NETWORK_CHANGED') || isExpected(message)
  page.on('console', (message) => message.type() === 'error' && !isIgnored(message) && seen.errors.push(message.text()))
  page.on('pageerror', (error) => seen.errors.push(String(error)))
  page.on('request', (request) => new URL(request.url()).origin === new URL(url).origin || request.url().startsWith('data:') || seen.foreign.push(request.url()))
}

async function made(options) {
  const page = await (await browser.newContext(options)).newPage()
  page.setDefaultTimeout(DEADLINE)
  watch(page)
  await page.addInitScript((secret) => secret && sessionStorage.setItem('token', secret), token)
  return page
}

// What assistive technology would stumble over.
async function look_at(page, name) {
  const { violations } = await new AxeBuilder({ page }).analyze()
  seen.axe[name] = violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`)
}

// Milliseconds to the first paint of a page that nothing is cached of, of some tries.
async function paints() {
  const found = []
  for (let i = 0; i < PAINTS; i++) {
    const page = await made()
    await page.goto(url)
    await page.waitForFunction(() => performance.getEntriesByName('first-contentful-paint').length)
    found.push(await page.evaluate(() => performance.getEntriesByName('first-contentful-paint')[0].startTime))
    await page.context().close()
  }
  return found
}

async function open(width, colorScheme, bars = 4) {
  const page = await made({ viewport: { width, height: 900 }, colorScheme })
  await page.goto(url)
  await page.waitForSelector('#state .badge.good, #state .badge.warn')
  await page.waitForFunction((count) => document.querySelectorAll('.uplot').length === 6 && document.querySelectorAll('#workers tr').length > 1 &&
    document.querySelectorAll('#stages .bar').length === count, bars)
  return page
}

// The picture of the cluster: who is drawn, how, with which line.
const picture = (page) => page.$eval('#picture svg', (svg) => ({
  label: svg.getAttribute('aria-label'),
  lines: [...svg.querySelectorAll('line')].map((one) => ({ kind: one.getAttribute('class'), from: [one.x1.baseVal.value, one.y1.baseVal.value], to: [one.x2.baseVal.value, one.y2.baseVal.value] })),
  parts: [...svg.querySelectorAll('g')].map((one) => {
    const circle = one.querySelector('circle')
    return { kind: one.getAttribute('class'), text: one.querySelector('text').textContent, at: [circle.cx.baseVal.value, circle.cy.baseVal.value] }
  }) }))

// Rectangles of a drawing: class, width, height, title.
const rectangles = (page, selector) => page.$$eval(selector, (all) => all.map((one) => ({ kind: one.getAttribute('class'), width: one.width.baseVal.value,
  height: one.height.baseVal.value, title: one.textContent })))

// The bars by stage, made to show all that the stages of a paused job have taken, as if within STAGE_SECONDS: what REST has the sums of.
async function bars(page) {
  await page.evaluate(async (seconds) => {
    const nothing = (worker) => [worker.member, Object.fromEntries(OF_WORKERS.map((stage) => [stage + '_seconds', 0]))]
    const { workers } = await call('/v1/workers')
    await refresh()
    looking = looking.then(() => {
      sums = { at: performance.now() / 1000 - seconds, workers: new Map(workers.map(nothing)), server: new Map([['none', 0]]) }
      tick = 5
      return look()
    })
    await looking
  }, STAGE_SECONDS)
  return page.$$eval('#stages .bar', (all) => all.map((bar) => ({ name: bar.firstChild.textContent, label: bar.querySelector('svg').getAttribute('aria-label'),
    title: bar.querySelector('title').textContent, parts: [...bar.querySelectorAll('rect')].map((one) => [one.getAttribute('class'), one.x.baseVal.value, one.width.baseVal.value]) })))
}

// What a paused job's page says, and what REST says.
async function shown(page) {
  const said = { cluster: await rest('cluster'), workers: (await rest('workers')).workers, waits: (await rest('waits')).waits,
    rounds: (await rest('rounds?limit=1000')).rounds, points: (await rest('curves')).points, checkpoints: (await rest('checkpoints')).checkpoints, servers: (await rest('servers')).servers, events: (await rest('events?limit=1000&type=member,generation,job,checkpoint,wait,round.aborted')).events,
    metrics: await (await fetch(new URL('/metrics', url), { headers: authorization })).text() }
  await page.waitForFunction((round) => document.querySelector('#round').textContent === round, said.cluster.round.toLocaleString('en'))
  await page.waitForFunction(() => !document.querySelector('#resume').disabled)
  await page.evaluate(() => { tick = 5; return refresh() })  // also the tables that are asked for each fifth second
  const tiles = {}
  for (const id of ['progress', 'round', 'loss', 'accuracy', 'speed', 'generation']) tiles[id] = await text(page, id)
  const curves = await page.evaluate(() => Object.fromEntries(Object.entries(charts).map(([id, one]) => [id, one.plot.data.map((list) => [...list])])))
  const tables = {}
  for (const id of ['workers', 'waits', 'servers', 'checkpoints', 'events', 'evictions']) tables[id] = await rows(page, id)
  const drawn = { picture: await picture(page), timeline: await rectangles(page, '#timeline rect'), timelineLabel: await page.getAttribute('#timeline', 'aria-label'),
    shares: await page.$$eval('#workers svg', (all) => all.map((one) => [one.getAttribute('aria-label'), ...[...one.querySelectorAll('rect')].map((part) => part.width.baseVal.value)])),
    bars: await bars(page), stageSeconds: STAGE_SECONDS }
  return { rest: said, tiles, curves, tables, drawn }
}

// Tab from the top to the end: what gets the focus, whether one sees it, whether it is the order of the page.
async function walk(page) {
  await page.evaluate(() => window.scrollTo(0, 0))
  await page.mouse.click(3, 3)  // from here on
  const wanted = await page.$$eval('a[href]:not([hidden]), button:not(:disabled), input, [tabindex="0"]', (all) => all.filter((one) => one.offsetParent !== null)
    .map((one) => one.id || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby')))
  const got = []
  for (let i = 0; i < wanted.length; i++) {
    await page.keyboard.press('Tab')
    got.push(await page.evaluate(() => {
      const one = document.activeElement
      const ring = getComputedStyle(one)
      return [one.id || one.getAttribute('aria-label') || one.getAttribute('aria-labelledby'), ring.outlineStyle !== 'none' && parseFloat(ring.outlineWidth) >= 2]
    }))
  }
  await page.keyboard.press('Shift+Tab')
  const back = await page.evaluate(() => document.activeElement.id || document.activeElement.getAttribute('aria-label') || document.activeElement.getAttribute('aria-labelledby'))
  return { wanted, got, back }
}

// A tab without a token asks for it, says that a wrong one is wrong, takes the right one and keeps it over a reload.
async function token_dialog() {
  const context = await browser.newContext()
  const page = await context.newPage()
  page.setDefaultTimeout(DEADLINE)
  const asked = 4 // requests of one look, of which each is refused
  let isRefused = true
  let refused = 0
  watch(page, (message) => isRefused && message.text() === 'Failed to load resource: the server responded with a status of 401 (Unauthorized)' &&
    new URL(message.location().url).pathname.startsWith('/v1/') && ++refused)
  const until_refused = async (count) => {
    for (const end = Date.now() + DEADLINE; refused < count; ) {
      if (Date.now() > end) throw new Error(`${refused} requests were refused, not ${count}`)
      await page.waitForTimeout(20)
    }
  }
  await page.goto(url)
  await page.waitForSelector('#ask[open]')
  const hints = [await page.isVisible('#refused')]
  await until_refused(asked)
  await look_at(page, 'token dialog')
  await page.keyboard.type('not this one')
  await page.keyboard.press('Enter')
  await page.waitForSelector('#ask[open] #refused', { state: 'visible' })
  hints.push(await page.isVisible('#refused'))
  await until_refused(2 * asked)
  await look_at(page, 'token dialog, refused')
  isRefused = false // from here on nothing may be
  await page.fill('#secret', token)
  await page.click('#ask button')
  await page.waitForFunction(() => document.querySelector('#notice').hidden && document.querySelectorAll('#workers tr').length > 1)
  await page.reload()
  await page.waitForFunction(() => document.querySelectorAll('#workers tr').length > 1)
  seen.token = { hints, isAsked: await page.isVisible('#ask'), refused }
  await context.close()
}

// An evicted name is listed and allowed again; then the job is stopped, after one No (before, in another view).
async function evicted_and_stopped() {
  const page = await open(1280, 'light', 3)
  const one = (await rest('workers')).workers.find((worker) => worker.state === 'active')
  await fetch(new URL(`/v1/workers/${one.member}:evict`, url), { method: 'POST', headers: { ...authorization, 'Content-Type': 'application/json' },
    body: JSON.stringify({ why: 'of the test' }) })
  await page.evaluate(() => { tick = 5; return Promise.all([refresh(), refresh()]) })  // a click while the page looks by itself
  await page.waitForSelector('#evictions button')
  seen.evictions = await rows(page, 'evictions')
  await page.click('#evictions button')
  await page.waitForFunction(() => document.querySelector('#evictions').textContent.includes('no name'))
  seen.evicted = { name: one.name, left: (await rest('evictions')).evictions, events: await rows(page, 'events') }
  seen.isStopped = true  // from here on the server may be gone
  const answer = page.waitForResponse((one) => one.url().endsWith('/v1/job:stop'))
  await page.click('#stop')
  await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await answer
}

// As a tab that is not shown does: it does not look.
const hide = (page) => page.evaluate(() => { Object.defineProperty(document, 'hidden', { get: () => true, configurable: true }); return looking })
// True: the page looks at once, without its timer.
const unhide = (page) => page.evaluate(() => {
  delete document.hidden
  const before = looking
  document.dispatchEvent(new Event('visibilitychange'))
  return looking !== before
})

// The job goes back to a checkpoint twice: while the page looks, and while it is hidden and does not.
async function restored() {
  const post = async (name, body = {}) => {
    const answer = await fetch(new URL('/v1/' + name, url), { method: 'POST', headers: { ...authorization, 'Content-Type': 'application/json' }, body: JSON.stringify(body) })
    if (!answer.ok) throw new Error(name + ': ' + (await answer.text()))
    return answer.json()
  }
  const until = async (what, condition) => {
    const end = Date.now() + DEADLINE
    while (!(await condition())) {
      if (Date.now() > end) throw new Error(`not within ${DEADLINE} ms: ` + what)
      await new Promise((resolve) => setTimeout(resolve, 100))
    }
  }
  const page = await open(1280, 'dark', 3)
  const { version, round } = await post('checkpoints')
  await page.waitForFunction((least) => course.points.at(-1).last > least + 20, round)
  await post('job:pause')
  await isIn(page, 'paused')
  await post(`checkpoints/${version}:restore`, { delete_newer: true })
  await page.waitForFunction(([at, last]) => cluster.version === at && course.points.every((point) => point.last <= last), [version, round])
  seen.kept = await page.evaluate(() => course.points.length)

  await post('job:resume')
  await page.waitForFunction((least) => course.points.at(-1).last > least + 20, round)
  await hide(page)
  const last = await page.evaluate(() => course.points.at(-1).last)
  const restored = Date.now() / 1000
  await post(`checkpoints/${version}:restore`, { delete_newer: true })
  await until('a later round than the page knows', async () => (await rest('cluster')).round > last + 20)
  await unhide(page)
  await page.waitForFunction((most) => course.points.at(-1).last > most, last)
  await page.waitForFunction(([least, when]) => course.points.every((point) => point.last <= least || point.unix_seconds > when), [round, restored])
}

// The curves of a job: from the first round on, with axes, scales, what a pointer shows, and what a hidden page has missed.
async function curves() {
  const page = await open(1024, 'light', 3)
  const labels = () => page.evaluate(() => Object.fromEntries(Object.entries(charts).map(([id, { plot }]) => [id, plot.axes.map((axis) => axis.label)])))
  const bounds = () => page.evaluate(() => Object.values(charts).map(({ plot }) => [plot.scales.x.min, plot.scales.x.max]))
  seen.labels = [await labels()]
  seen.log = [await page.evaluate(() => Object.values(charts).map(({ plot }) => plot.scales.y.distr))]
  await page.click('#by-time')
  await page.click('#log')
  seen.labels.push(await labels())
  seen.log.push(await page.evaluate(() => Object.values(charts).map(({ plot }) => plot.scales.y.distr)))
  await page.reload()
  await page.waitForFunction(() => document.querySelectorAll('.uplot').length === 6)
  seen.pressed = await page.$$eval('[aria-pressed=true]', (all) => all.map((one) => one.id))
  await page.click('#by-round')

  await hide(page)
  const missed = (await rest('cluster')).round + 30
  while ((await rest('cluster')).round < missed) await new Promise((resolve) => setTimeout(resolve, 100))
  seen.looksAtOnce = await unhide(page)
  await page.waitForFunction((least) => course.points.at(-1).last >= least - 1, missed)

  await page.click('#pause')
  await isIn(page, 'paused')
  await page.evaluate(() => refresh())
  seen.points = (await rest('curves')).points
  seen.tips = []
  for (const id of ['loss-chart', 'accuracy-chart', 'rate-chart', 'lr-chart', 'norm-chart', 'time-chart']) {
    await page.locator(`#${id}`).scrollIntoViewIfNeeded()
    const box = await page.locator(`#${id} .u-over`).boundingBox()
    await page.mouse.move(box.x + 0.6 * box.width, box.y + 0.5 * box.height)
    await page.waitForFunction((one) => find(one).querySelector('.tip:not([hidden])'), id)
    seen.tips.push({ id, index: await page.evaluate((one) => charts[one].plot.cursor.idx, id), text: await page.textContent(`#${id} .tip`),
      count: await page.evaluate(() => document.querySelectorAll('.tip:not([hidden])').length) })
  }
  const box = await page.locator('#time-chart .u-over').boundingBox()
  await page.mouse.move(box.x + 0.25 * box.width, box.y + 50)
  await page.mouse.down()
  await page.mouse.move(box.x + 0.5 * box.width, box.y + 50, { steps: 4 })
  await page.mouse.up()
  seen.zoomed = [await bounds()]
  await page.click('#resume')
  await page.waitForFunction((least) => course.points.at(-1).last > least, seen.points.at(-1).last + 10)
  seen.zoomed.push(await bounds())
  await page.locator('#time-chart .u-over').dblclick()
  await page.waitForFunction(() => Object.values(charts).every(({ plot }) => plot.scales.x.min === course.points[0].last && plot.scales.x.max === course.points.at(-1).last))
}

// One worker does not come: the open round waits for it.
async function frozen() {
  const page = await open(1280, 'dark', 3)
  await page.waitForSelector('#picture line.waiting', { state: 'attached' })
  seen.frozen = { picture: await picture(page), timeline: (await rectangles(page, '#timeline rect')).at(-1), rounds: (await rest('rounds?limit=1')).rounds, workers: (await rest('workers')).workers }
}

// Losses as no short job has them: the page gets the rounds of a paused job, with other losses, which grow a little from each to the next.
async function tiny() {
  await fetch(new URL('/v1/job:pause', url), { method: 'POST', headers: authorization })
  const answer = await rest('curves')
  const cluster = await rest('cluster')
  seen.tiny = []
  for (const colorScheme of ['dark', 'light'])
    for (const loss of [1.2345e-7, -0.0000012345, 0.000123456, 1.25, 3.4028e38]) {
      const page = await made({ viewport: { width: 360, height: 900 }, colorScheme })
      const growing = answer.points.map((one, i) => ({ ...one, loss: loss * (1 + (0.006 * i) / answer.points.length), test_loss: null }))
      await page.route('**/v1/cluster*', (route) => route.fulfill({ json: { ...cluster, loss, test_loss: Math.abs(loss) } }))
      await page.route('**/v1/curves*', (route) => route.fulfill({ json: { ...answer, points: growing } }))
      await page.goto(url)
      // uPlot has no steps for an axis of numbers as large as the last.
      await page.waitForFunction((isHuge) => document.querySelector('#loss').textContent !== '–' && charts['loss-chart'] && charts['loss-chart'].plot.data[0].length > 1 &&
        (isHuge || charts['loss-chart'].plot.axes[1]._values), loss > 1e16)
      await page.screenshot({ path: path.join(out, `console-${colorScheme}-${loss}.png`), clip: { x: 0, y: 0, width: 360, height: 900 } })
      seen.tiny.push(await page.evaluate(() => {
        const width = (element) => { const range = document.createRange(); range.selectNodeContents(element); return range.getBoundingClientRect().width }
        return { loss: find('loss').textContent, axis: charts['loss-chart'].plot.axes[1]._values || [],
          over: [...document.querySelectorAll('.tiles div')].filter((tile) => width(tile) > tile.clientWidth + 0.5).map((tile) => tile.textContent) }
      }))
      await page.context().close()
    }
}

try {
  if (part === 'tiny') await tiny()
  if (part === 'curves') await curves()
  if (part === 'restore') await restored()
  if (part === 'frozen') await frozen()
  if (part === 'all') seen.paints = await paints()
  for (const [name, width, scheme] of part === 'all' ? [['dark', 1600, 'dark'], ['light', 1024, 'light'], ['narrow', 390, 'dark']] : []) {
    const page = await open(width, scheme)
    await page.screenshot({ path: path.join(out, `console-${name}.png`), fullPage: true })
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)
    seen.views[name] = { overflow }
    await look_at(page, name)
    if (name === 'dark') {
      const timing = await page.evaluate(() => {
        const files = performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/console/'))
        const own = performance.getEntriesByType('navigation')[0]
        return { bytes: own.transferSize + files.reduce((sum, entry) => sum + entry.transferSize, 0) }
      })
      Object.assign(seen, timing)
      await page.click('#pause')
      await isIn(page, 'paused')
      seen.stages = await page.$$eval('#stages svg', (all) => all.map((one) => one.getAttribute('aria-label')))
      await page.click('#checkpoint')
      await page.waitForFunction(() => [...document.querySelectorAll('#checkpoints tr')].some((row) => row.cells.length === 5))
      seen.paused = await shown(page)
      await look_at(page, 'paused')
      seen.walk = await walk(page)
      await page.click('#stop')
      await look_at(page, 'stop dialog')
      await page.keyboard.press('Escape')
      await page.click('#stop')
      await page.click('#sure button[value=no]')
      await page.click('#resume')
      await isIn(page, 'training')
    }
    if (name === 'narrow') {  // what is drained is gone
      await page.focus('#workers tr button')
      await page.evaluate(() => { window.focused = document.activeElement })
      await page.evaluate(() => refresh().then(refresh))
      seen.keepsFocus = await page.evaluate(() => document.activeElement === window.focused && window.focused.isConnected)
      seen.drained = await page.evaluate(() => window.focused.getAttribute('aria-label'))
      await page.keyboard.press('Enter')
      const dialog = await page.$('dialog[open]')
      if (dialog) await page.keyboard.press('Enter')
      await page.waitForFunction((label) => ![...document.querySelectorAll('#workers tr button')].some((one) => one.getAttribute('aria-label') === label && !one.disabled), seen.drained)
      const left = seen.drained.replace(/^Drain /, '')
      await page.waitForFunction((gone) => ![...document.querySelectorAll('#picture text')].some((one) => one.textContent === gone), left)
      seen.left = await picture(page)
    }
    await page.context().close()
  }
  if (part === 'all') {
    await token_dialog()
    await evicted_and_stopped()
  }
} finally {
  await browser.close()
}
console.log(JSON.stringify(seen))

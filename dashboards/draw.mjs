// Draw every panel of the dashboards from a Prometheus, to look at them without a Grafana:
//   node draw.mjs PACKAGES CHROMIUM PROMETHEUS OUT [SECONDS [RATE]]
// PACKAGES: a folder with playwright-core in node_modules; SECONDS: how much of the past; RATE: window of rates. Writes OUT/NAME-dark.png and
// NAME-light.png for each dashboard, and prints one JSON object of what a person should look at: panels without a line, text that does not fit.
import { readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'

const [, , packages, executablePath, prometheus, out, seconds = '60', rate = '10s'] = process.argv
const here = path.dirname(fileURLToPath(import.meta.url))
const uplot = path.join(here, '..', 'server', 'api', 'console')
const loader = path.join(path.resolve(packages), `load-${process.pid}.mjs`) // of its own: others write theirs at the same time
writeFileSync(loader, 'export const load = (name) => import(name)\n')
const { load } = await import(pathToFileURL(loader))
rmSync(loader)
const { chromium } = (await load('playwright-core')).default

const STEPS = 60
const end = Date.now() / 1000
const step = Number(seconds) / STEPS
const start = end - Number(seconds)

async function ask(query) {
  const filled = query.replace(/\$(job|instance|run)/g, '.*').replaceAll('$__rate_interval', rate)
  const parameters = new URLSearchParams({ query: filled, start, end, step })
  const answer = await (await fetch(`${prometheus}/api/v1/query_range?${parameters}`)).json()
  if (answer.status !== 'success') throw new Error(`${filled}: ${answer.error}`)
  return answer.data.result
}

/** Lines of a panel: [{name, values}], a value for each step or null. */
async function lines(panel) {
  const found = []
  for (const target of panel.targets) {
    for (const series of await ask(target.expr)) {
      const values = Array(STEPS + 1).fill(null)
      for (const [time, value] of series.values) values[Math.round((time - start) / step)] = Number.isFinite(Number(value)) ? Number(value) : null
      found.push({ name: target.legendFormat.replace(/\{\{\s*(\w+)\s*\}\}/g, (_, label) => series.metric[label] ?? ''), values })
    }
  }
  return found.filter((line) => line.values.some((value) => value !== null))
}

// Runs in the page.
function draw({ title, panels, times }) {
  const scaled = (value, units, base) => {
    let k = 0
    while (Math.abs(value) >= base && k < units.length - 1) { value /= base; k += 1 }
    return `${Number(value.toPrecision(3))}${units[k] && ' ' + units[k]}`
  }
  const tiny = (value) => value && Math.abs(value) < 1 ? (Math.abs(value) < 1e-3 ? `${Number((value * 1e6).toPrecision(3))} µs` : `${Number((value * 1e3).toPrecision(3))} ms`) : `${Number(value.toPrecision(3))} s`
  const shown = {
    s: tiny,
    bytes: (value) => scaled(value, ['B', 'KiB', 'MiB', 'GiB', 'TiB'], 1024),
    Bps: (value) => scaled(value, ['B/s', 'kB/s', 'MB/s', 'GB/s'], 1000),
    ops: (value) => scaled(value, ['/s', 'k/s', 'M/s'], 1000),
    percentunit: (value) => `${Number((100 * value).toPrecision(3))} %`,
    celsius: (value) => `${value} °C`,
    watt: (value) => `${value} W`,
    dateTimeFromNow: (value) => `${Math.round((Date.now() - value) / 1000)} s ago`,
  }
  const colours = ['#3b82f6', '#f59e0b', '#10b981', '#ef4444', '#8b5cf6', '#06b6d4', '#ec4899', '#84cc16', '#f97316', '#64748b']
  const style = getComputedStyle(document.body)
  document.querySelector('h1').textContent = title
  const grid = document.querySelector('main')
  for (const panel of panels) {
    const { x, y, w, h } = panel.gridPos
    const box = document.createElement(panel.type === 'row' ? 'h2' : 'section')
    box.style.gridArea = `${y + 1} / ${x + 1} / span ${h} / span ${w}`
    grid.append(box)
    if (panel.type === 'row') { box.textContent = panel.title; continue }
    const name = box.appendChild(document.createElement('h3'))
    name.textContent = panel.title
    const format = shown[panel.unit] ?? ((value) => scaled(value, ['', 'k', 'M', 'G'], 1000))
    box.dataset.panel = panel.title
    box.dataset.lines = panel.lines.length
    if (panel.type === 'stat') {
      for (const line of panel.lines) {
        const value = box.appendChild(document.createElement('p'))
        const last = line.values.filter((one) => one !== null).at(-1)
        value.textContent = { name: line.name, value: format(last) }[panel.names] ?? `${line.name}: ${format(last)}`
      }
      continue
    }
    const legend = document.createElement('footer')
    panel.lines.forEach((line, k) => {
      const item = legend.appendChild(document.createElement('span'))
      item.textContent = line.name
      item.style.setProperty('--colour', colours[k % colours.length])
    })
    const chart = box.appendChild(document.createElement('div'))
    box.append(legend)
    let rows = panel.lines.map((line) => line.values)
    if (panel.stacked) rows = rows.map((_, k) => times.map((_, i) => rows.slice(0, k + 1).reduce((sum, row) => sum + (row[i] ?? 0), 0)))
    const series = panel.lines.map((line, k) => ({ label: line.name, stroke: colours[k % colours.length], width: 1.5, points: { show: false },
      fill: colours[k % colours.length] + (panel.stacked ? 'a0' : '18') }))
    if (panel.stacked) { rows.reverse(); series.reverse() }
    const axis = { stroke: style.color, grid: { stroke: style.getPropertyValue('--line') }, ticks: { show: false }, font: '11px sans-serif' }
    new uPlot({ width: chart.clientWidth, height: Math.max(60, chart.clientHeight), legend: { show: false }, cursor: { show: false },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), high > 0 ? high * 1.05 : 1] } }, series: [{}, ...series],
      axes: [{ ...axis, space: 70 }, { ...axis, size: 70, values: (_, ticks) => ticks.map(format) }] }, [times, ...rows], chart)
  }
}

const PAGE = `<!doctype html><meta charset="utf-8"><title>dashboard</title><style>
:root { --line: #e5e7eb; color-scheme: light dark } body { margin: 16px; background: #f4f5f7; color: #111827; font: 13px/1.4 "DejaVu Sans", sans-serif }
h1 { font-size: 18px; margin: 0 0 8px } main { display: grid; grid-template-columns: repeat(24, 1fr); grid-auto-rows: 30px; gap: 8px }
h2 { font-size: 14px; margin: 0; align-self: end; border-bottom: 1px solid var(--line) }
section { background: #fff; border: 1px solid var(--line); border-radius: 4px; padding: 6px 8px; min-width: 0; display: flex; flex-direction: column; overflow: hidden }
h3 { font-size: 13px; margin: 0; white-space: nowrap; overflow: hidden } section > div { flex: 1; min-height: 0 }
p { font-size: 22px; margin: 4px 0 0; white-space: nowrap; overflow: hidden } footer { flex: none; max-height: 60%; overflow: hidden; font-size: 11px; line-height: 1.3 }
footer span { display: inline-block; margin-right: 12px; max-width: 100%; white-space: nowrap } footer span::before { content: ""; display: inline-block; width: 14px; height: 3px; margin-right: 4px; vertical-align: middle; background: var(--colour) }
@media (prefers-color-scheme: dark) { :root { --line: #2c3140 } body { background: #111217; color: #d8d9da } section { background: #181b1f } }
</style><h1></h1><main></main>`

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'] })
const seen = {}
try {
  for (const file of readdirSync(path.join(here, 'grafana')).sort()) {
    const name = file.replace('.json', '')
    const dashboard = JSON.parse(readFileSync(path.join(here, 'grafana', file), 'utf8'))
    const panels = []
    for (const { type, title, gridPos, fieldConfig, options, ...panel } of dashboard.panels) {
      panels.push({ type, title, gridPos, unit: fieldConfig?.defaults.unit, names: options?.textMode ?? 'value',
        stacked: fieldConfig?.defaults.custom?.stacking?.mode === 'normal', lines: type === 'row' ? [] : await lines(panel) })
    }
    for (const colorScheme of ['dark', 'light']) {
      const context = await browser.newContext({ viewport: { width: 1500, height: 900 }, colorScheme })
      const page = await context.newPage()
      const errors = []
      page.on('pageerror', (error) => errors.push(String(error)))
      await page.setContent(PAGE)
      await page.addStyleTag({ path: path.join(uplot, 'uplot.css') })
      await page.addScriptTag({ path: path.join(uplot, 'uplot.js') })
      await page.evaluate(draw, { title: dashboard.title, panels, times: Array.from({ length: STEPS + 1 }, (_, k) => start + k * step) })
      await page.screenshot({ path: path.join(out, `${name}-${colorScheme}.png`), fullPage: true })
      const boxes = await page.$$eval('section', (sections) => sections.map((box) => ({ panel: box.dataset.panel, lines: Number(box.dataset.lines),
        cut: [...box.querySelectorAll('h3, p, footer')].some((text) => text.scrollWidth > text.clientWidth || text.scrollHeight > text.clientHeight + 1) ||
          box.scrollHeight > box.clientHeight + 1 })))
      seen[`${name}-${colorScheme}`] = { errors, panels: boxes.length, charts: await page.$$eval('.uplot', (found) => found.length),
        empty: boxes.filter((box) => !box.lines).map((box) => box.panel), cut: boxes.filter((box) => box.cut).map((box) => box.panel) }
      await context.close()
    }
  }
} finally {
  await browser.close()
}
console.log(JSON.stringify(seen))

// The console in Chromium: node console_check.mjs PACKAGES CHROMIUM URL OUT TOKEN. Prints one JSON object of what was seen, and writes
// pictures of dark, light and narrow into OUT.
import { writeFileSync } from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [, , packages, executablePath, url, out, token] = process.argv
writeFileSync(path.join(packages, 'load.mjs'), 'export const load = (name) => import(name)\n')
const { load } = await import(pathToFileURL(path.join(path.resolve(packages), 'load.mjs')))
const { chromium } = (await load('playwright-core')).default
const { AxeBuilder } = await load('@axe-core/playwright')

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'] })
const seen = { errors: [], foreign: [], bytes: 0, views: {} }

async function open(width, colorScheme) {
  const context = await browser.newContext({ viewport: { width, height: 900 }, colorScheme })
  const page = await context.newPage()
  page.on('console', (message) => message.type() === 'error' && seen.errors.push(message.text()))
  page.on('pageerror', (error) => seen.errors.push(String(error)))
  page.on('request', (request) => new URL(request.url()).origin === new URL(url).origin || request.url().startsWith('data:') || seen.foreign.push(request.url()))
  await page.addInitScript((secret) => secret && sessionStorage.setItem('token', secret), token)
  await page.goto(url)
  await page.waitForSelector('#state .badge.good, #state .badge.warn')
  await page.waitForFunction(() => document.querySelectorAll('.uplot').length === 4 && document.querySelectorAll('#workers tr').length > 1 &&
    document.querySelectorAll('#stages .bar').length === 4)
  return page
}

try {
  for (const [name, width, scheme] of [['dark', 1280, 'dark'], ['light', 1280, 'light'], ['narrow', 360, 'dark']]) {
    const page = await open(width, scheme)
    await page.screenshot({ path: path.join(out, `console-${name}.png`), fullPage: true })
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)
    const axe = await new AxeBuilder({ page }).analyze()
    const bad = axe.violations.filter((one) => ['serious', 'critical'].includes(one.impact))
    seen.views[name] = { overflow, axe: bad.map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`) }
    if (name === 'dark') {
      const timing = await page.evaluate(() => {
        const paint = performance.getEntriesByName('first-contentful-paint')[0]
        const files = performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/console/'))
        const own = performance.getEntriesByType('navigation')[0]
        return { paint: paint && paint.startTime, bytes: own.transferSize + files.reduce((sum, entry) => sum + entry.transferSize, 0) }
      })
      Object.assign(seen, timing)
      await page.click('#pause')
      await page.waitForFunction(() => document.querySelector('#state').textContent.includes('paused'))
      seen.rest = await page.evaluate(async (secret) => (await fetch('/v1/cluster', { headers: { Authorization: 'Bearer ' + secret } })).json(), token)
      await page.waitForFunction((round) => document.querySelector('#round').textContent === round, seen.rest.round.toLocaleString('en'))
      const text = (id) => page.textContent('#' + id)
      await page.waitForFunction(() => !document.querySelector('#resume').disabled)
      seen.paused = { round: await text('round'), loss: await text('loss'), accuracy: await text('accuracy'), generation: await text('generation'),
        workers: await page.$$eval('#workers tr', (rows) => rows.map((row) => row.cells[0].textContent)), waits: await text('waits') }
      await page.keyboard.press('Tab')
      seen.focus = await page.evaluate(() => document.activeElement !== document.body)
      await page.click('#checkpoint')
      await page.waitForFunction(() => [...document.querySelectorAll('#checkpoints tr')].some((row) => row.cells.length === 5))
      await page.click('#resume')
      await page.waitForFunction(() => document.querySelector('#state').textContent.includes('training'))
    }
    if (name === 'narrow') {  // last: what is drained is gone
      await page.focus('#workers tr button')
      await page.evaluate(() => { window.focused = document.activeElement })
      await page.waitForTimeout(2500)  // two polls
      seen.keepsFocus = await page.evaluate(() => document.activeElement === window.focused && window.focused.isConnected)
      seen.drained = await page.evaluate(() => window.focused.getAttribute('aria-label'))
      await page.keyboard.press('Enter')
      const dialog = await page.$('dialog[open]')
      if (dialog) await page.keyboard.press('Enter')
      await page.waitForFunction((label) => ![...document.querySelectorAll('#workers tr button')].some((one) => one.getAttribute('aria-label') === label && !one.disabled), seen.drained)
    }
    await page.context().close()
  }
} finally {
  await browser.close()
}
console.log(JSON.stringify(seen))

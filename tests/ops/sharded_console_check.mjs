// The page of a rank in Chromium: node sharded_console_check.mjs PACKAGES CHROMIUM URL OUT. Prints one JSON object of what was seen at three widths, dark and light.
import { rmSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [, , packages, executablePath, url, out] = process.argv
const loader = path.join(path.resolve(packages), `load-${process.pid}.mjs`)
writeFileSync(loader, 'export const load = (name) => import(name)\n')
const { load } = await import(pathToFileURL(loader))
rmSync(loader)
const { chromium } = (await load('playwright-core')).default
const { AxeBuilder } = await load('@axe-core/playwright')

const browser = await chromium.launch({ executablePath, args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking'] })
const seen = { errors: [], foreign: [], views: {} }
for (const width of [1600, 900, 380]) {
  for (const colorScheme of ['dark', 'light']) {
    const page = await (await browser.newContext({ viewport: { width, height: 900 }, colorScheme })).newPage()
    page.setDefaultTimeout(180000)
    page.on('console', (message) => message.type() === 'error' && !message.text().includes('ERR_NETWORK_CHANGED') && seen.errors.push(message.text()))
    page.on('pageerror', (error) => seen.errors.push(String(error)))
    page.on('request', (request) => new URL(request.url()).origin === new URL(url).origin || request.url().startsWith('data:') || seen.foreign.push(request.url()))
    await page.goto(url)
    await page.waitForFunction(() => document.querySelectorAll('#memory rect[width]:not([width="0"])').length >= 6)
    const { violations } = await new AxeBuilder({ page }).analyze()
    const cells = (id) => page.$$eval(`#${id} tr`, (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)))
    seen.views[`${width} ${colorScheme}`] = {
      overflow: await page.evaluate(() => Math.max(0, document.documentElement.scrollWidth - document.documentElement.clientWidth)),
      axe: violations.filter((one) => ['serious', 'critical'].includes(one.impact)).map((one) => `${one.id}: ${one.nodes.map((node) => node.html).join(' | ')}`),
      state: await page.textContent('#state'),
      parts: await cells('parts'),
      moves: await cells('moves'),
      changes: await cells('changes'),
      memory: await page.$$eval('#memory svg', (all) => all.map((one) => one.getAttribute('aria-label'))),
      times: await page.$$eval('#times svg', (all) => all.map((one) => one.getAttribute('aria-label'))),
    }
    await page.screenshot({ path: path.join(out, `sharded-${width}-${colorScheme}.png`), fullPage: true })
    await page.context().close()
  }
}
console.log(JSON.stringify(seen))
await browser.close()

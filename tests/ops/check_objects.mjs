// Check rendered Kubernetes objects strictly: kubectl kustomize DIR | node check_objects.mjs NODE_MODULES_PARENT
// Each is validated by the schema of its kind (types, enums, required fields) and by the TypeScript type of it, which no unknown field fits.
// Exit status 1 when one of them has a problem or no known kind.
import { spawnSync } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const home = path.resolve(process.argv[2])
const require = createRequire(path.join(home, 'package.json'))
// Packages are found from where a module stands, so one that stands there imports them.
const loader = path.join(path.resolve(home), `load-${process.pid}.mjs`) // of its own: others write theirs at the same time
writeFileSync(loader, 'export const load = (name) => import(name)\n')
const { load } = await import(pathToFileURL(loader))
rmSync(loader)
const { parseAllDocuments } = await load('yaml')

// jobset.x-k8s.io has no package of types: its own fields as in the API's v1alpha2, with the Job's type inside.
const jobSetType = `
import type { IObjectMeta } from '@kubernetes-models/apimachinery/apis/meta/v1/ObjectMeta';
import type { IJobSpec } from 'kubernetes-models/batch/v1';
type JobSetPolicy = { operator: 'All' | 'Any'; targetReplicatedJobs?: string[] };
type JobSetRule = { name: string; action: 'FailJobSet' | 'RestartJobSet' | 'RestartJobSetAndIgnoreMaxRestarts'; targetReplicatedJobs?: string[];
  onJobFailureReasons?: ('BackoffLimitExceeded' | 'DeadlineExceeded' | 'FailedIndexes' | 'MaxFailedIndexesExceeded' | 'PodFailurePolicy')[] };
export interface IJobSet {
  apiVersion: 'jobset.x-k8s.io/v1alpha2'; kind: 'JobSet'; metadata?: IObjectMeta;
  spec: {
    replicatedJobs: { name: string; replicas?: number; template: { metadata?: IObjectMeta; spec: IJobSpec };
      dependsOn?: { name: string; status: 'Ready' | 'Complete' }[] }[];
    network?: { enableDNSHostnames?: boolean; subdomain?: string; publishNotReadyAddresses?: boolean };
    successPolicy?: JobSetPolicy; failurePolicy?: { maxRestarts?: number; rules?: JobSetRule[] };
    suspend?: boolean; ttlSecondsAfterFinished?: number;
  };
}
`

const problems = []
const imports = []
const literals = []
const names = []

function packageOf(apiVersion) {
  if (apiVersion.startsWith('jobset.x-k8s.io/')) return null
  const owner = apiVersion.startsWith('monitoring.coreos.com/') ? '@kubernetes-models/prometheus-operator' : 'kubernetes-models'
  return `${owner}/${apiVersion}`
}

async function check(object) {
  const name = `${object.kind}/${object.metadata?.name}`
  const module = packageOf(object.apiVersion)
  const number = names.push(name) - 1
  if (module) {
    let kinds
    try {
      kinds = await load(module)
    } catch {
      return problems.push(`${name}: no schema of ${object.apiVersion}`)
    }
    if (!kinds[object.kind]) return problems.push(`${name}: ${object.apiVersion} has no such kind`)
    try {
      new kinds[object.kind](object).validate()
    } catch (error) {
      problems.push(`${name}: ${error.message}`)
    }
  }
  imports.push(`import type { I${object.kind} as T${number} } from '${module ?? './jobset'}';`)
  literals.push([number, `export const object${number}: T${number} = ${JSON.stringify(object)};`])
}

for (const document of parseAllDocuments(readFileSync(0, 'utf8'), { uniqueKeys: true })) {
  problems.push(...document.errors.map((error) => error.message))
  const object = document.toJS()
  if (object) await check(object)
}

const folder = mkdtempSync(path.join(home, 'types-'))
try {
  writeFileSync(path.join(folder, 'jobset.ts'), jobSetType)
  writeFileSync(path.join(folder, 'objects.ts'), [...imports, ...literals.map(([, text]) => text)].join('\n'))
  const options = ['--noEmit', '--strict', '--skipLibCheck', '--module', 'esnext', '--moduleResolution', 'bundler', '--target', 'es2022']
  const done = spawnSync(process.execPath, [require.resolve('typescript/bin/tsc'), ...options, path.join(folder, 'objects.ts')], { encoding: 'utf8', cwd: home })
  for (const line of done.stdout.split('\n')) {
    const found = /objects\.ts\((\d+),\d+\): error (.*)/.exec(line)
    const literal = found && literals[Number(found[1]) - 1 - imports.length]
    if (found) problems.push(`${literal ? names[literal[0]] : 'imports'}: ${found[2]}`)
    else if (line.includes('error')) problems.push(line)
  }
} finally {
  rmSync(folder, { recursive: true })
}
for (const problem of problems) console.log(problem)
console.log(`${names.length} objects, ${problems.length} problems`)
process.exit(problems.length || !names.length ? 1 : 0)

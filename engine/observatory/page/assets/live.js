// What is now, and what was in the last half hour: by the stream, or by asking where there is none.
import { get, stream } from './api.js';

const pollEvery = 2000;
const streamTimeout = 15000; // without an event
const streamAgain = 5; // polls until the stream is tried again
const sampleEvery = 2; // seconds
const kept = 30 * 60; // seconds

const listeners = new Set();

// now is what is known. error is why the last try failed; then the rest is of the last one that did not.
export const now = { health: null, outbox: null, subscriptions: null, at: null, error: null, way: '' };

// history has, by signal and by lane ("provider / target"), a value per moment of times; null: not known.
export const history = { times: [], lanes: new Map() };

export const signals = ['pending', 'failed', 'abandoned', 'rate', 'oldest'];

export function listen(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

const tell = () => { for (const listener of [...listeners]) listener(now); };

// lanes are all lanes with their names, in the order of these.
export function lanes() {
  const all = [];
  for (const [provider, targets] of Object.entries(now.outbox?.providers ?? {})) {
    for (const [target, lane] of Object.entries(targets ?? {})) all.push({ provider, target, name: `${provider} / ${target}`, ...lane });
  }
  return all.sort((a, b) => (a.name < b.name ? -1 : 1));
}

export const providers = () => Object.keys(now.outbox?.providers ?? {}).sort();

function take(state, way) {
  Object.assign(now, { health: state.health ?? now.health, outbox: state.outbox ?? now.outbox, subscriptions: state.subscriptions?.subscriptions ?? now.subscriptions, at: Date.now(), error: null, way });
  sample(Date.now() / 1000);
  tell();
}

function failed(error) {
  now.error = error;
  tell();
}

function sample(seconds) {
  const { times } = history;
  if (times.length && seconds - times.at(-1) < sampleEvery * 0.9) return;
  // A gap is drawn as a gap.
  if (times.length && seconds - times.at(-1) > sampleEvery * 5) record(times.at(-1) + sampleEvery, []);
  record(seconds, lanes());
  let old = 0;
  while (times[old] < seconds - kept) old++;
  if (!old) return;
  times.splice(0, old);
  for (const [name, series] of history.lanes) {
    for (const s of signals) series[s].splice(0, old);
    if (signals.every((s) => series[s].every((v) => v === null))) history.lanes.delete(name);
  }
}

function record(seconds, current) {
  history.times.push(seconds);
  for (const lane of current) {
    if (!history.lanes.has(lane.name)) {
      history.lanes.set(lane.name, Object.fromEntries(signals.map((s) => [s, Array(history.times.length - 1).fill(null)])));
    }
  }
  const found = new Map(current.map((lane) => [lane.name, lane]));
  for (const [name, series] of history.lanes) {
    const lane = found.get(name);
    series.pending.push(lane?.counts?.pending ?? null);
    series.failed.push(lane?.counts?.failed ?? null);
    series.abandoned.push(lane?.counts?.abandoned ?? null);
    series.rate.push(lane?.published_per_second ?? null);
    // Nothing waits: nothing is old.
    series.oldest.push(lane ? lane.oldest_pending_seconds ?? (lane.counts ? 0 : null) : null);
  }
}

const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

let round = new AbortController();

// again drops what is under way, because the token is another one or somebody does not want to wait.
export const again = () => round.abort();

async function follow() {
  const ended = new AbortController();
  let timer;
  const watch = () => {
    clearTimeout(timer);
    timer = setTimeout(() => ended.abort(), streamTimeout);
  };
  watch();
  try {
    await stream('api/stream', (name, data) => {
      watch();
      if (name === 'state') take(data, 'stream');
    }, AbortSignal.any([round.signal, ended.signal]));
  } finally {
    clearTimeout(timer);
  }
}

async function poll() {
  const signal = round.signal;
  // Each may be missing or slow; only all together are a lost connection.
  const [outbox, subscriptions, health] = await Promise.allSettled(['api/outbox', 'api/subscriptions', 'api/health'].map((path) => get(path, signal)));
  if (signal.aborted) return;
  if (outbox.status === 'rejected') throw outbox.reason;
  take({ outbox: outbox.value, subscriptions: subscriptions.value, health: health.value }, 'polling');
}

// run never ends.
export async function run() {
  document.addEventListener('waybill:token', again);
  for (;;) {
    round = new AbortController();
    try {
      await follow();
    } catch { /* polling finds out why */ }
    for (let i = 0, lost = false; i < streamAgain && !round.signal.aborted; i++) {
      try {
        await poll();
        if (lost) break; // it is back: perhaps the stream, too
      } catch (e) {
        if (round.signal.aborted) break;
        lost = true;
        i = 0;
        failed(e);
      }
      await Promise.race([sleep(pollEvery), new Promise((resolve) => { round.signal.addEventListener('abort', resolve, { once: true }); })]);
    }
  }
}

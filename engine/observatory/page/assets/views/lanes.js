// Lanes: who publishes what, and who consumes.
import { get } from '../api.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { age, brief, clock, count, plural, query, rate, short, when } from '../format.js';
import { lanes as all, listen, now } from '../live.js';

const toMessages = (l, status, n) => (n > 0 ? h('a', { href: `#/messages${query({ provider: l.provider, target: l.target, status })}` }, count(n)) : count(n));
const counted = (title, status) => ({ title, num: true, same: (l) => `${l.counts?.[status]}`, cell: (l) => toMessages(l, status, l.counts?.[status]) });
const text = (value) => h('span', { class: 'error', title: value }, short(value));

// latency is from storing to acknowledgement: of half the rows, and of 99 in 100.
const latency = (l) => (l ? [brief(l.p50), h('br'), brief(l.p99)] : '–');

const owners = (l) => (l.lease_owners?.length ? h('a', { href: '#/partitions', title: l.lease_owners.join('\n') }, plural(l.lease_owners.length, 'process', 'processes')) : l.lease_owners ? 'nobody' : '–');

// sick are the processes that don't reach the broker.
const sick = (l) => {
  const some = (l.members ?? []).filter((m) => !m.healthy);
  return some.length > 0 && [' ', h('span', { class: 'badge', 'data-status': 'degraded', title: some.map((m) => `${m.name}: ${m.trouble || 'retrying'}`).join('\n') }, `${count(some.length)} sick`)];
};

// slow is what makes a lane slow on purpose.
const slow = (l) => l.doing && h('div', { class: 'quiet' }, l.doing === 'probing' ? 'one row at a time' : l.doing);

// gone are subscriptions that a database knows of, and that run nowhere.
const knownEvery = 10000;

function gone(signal) {
  const failure = h('div');
  const list = table({
    caption: 'Subscriptions that a database knows of and that run in no process: stopped for now, or removed from the program. What a removed one left is kept until it is retired.',
    empty: 'Every subscription that the databases know of is running.',
    key: (s) => `${s.provider} ${s.name}`,
    rowState: (s) => (s.open > 0 ? 'bad' : ''),
    columns: [
      { title: 'Subscription', cell: (s) => s.name },
      { title: 'Database', cell: (s) => s.provider },
      { title: 'Last seen', same: (s) => `${s.last_seen}`, cell: (s) => when(s.last_seen) },
      { title: 'Inbox', num: true, cell: (s) => (s.inbox_more ? `over ${count(s.inbox)}` : count(s.inbox)) },
      { title: 'Open dead letters', num: true, same: (s) => `${s.open}`, cell: (s) => (s.open > 0 ? h('a', { href: `#/dead-letters${query({ provider: s.provider, subscription: s.name })}` }, count(s.open)) : count(s.open)) },
      { title: 'To remove it', same: (s) => s.name, cell: (s) => h('code', null, `waybill subscriptions retire ${s.name}`) },
    ],
  });
  async function load() {
    try {
      const { providers } = await get('api/subscriptions/known', signal);
      list.update(Object.entries(providers).flatMap(([provider, all]) => (all ?? []).filter((s) => !s.running).map((s) => ({ provider, ...s }))));
      replace(failure);
    } catch (e) {
      if (!signal.aborted) replace(failure, problem(e));
    }
  }
  document.addEventListener('waybill:token', load, { signal });
  const timer = setInterval(load, knownEvery);
  signal.addEventListener('abort', () => clearInterval(timer));
  load();
  return h('section', { 'aria-label': 'Not running' }, h('h2', null, 'Subscriptions that do not run'), failure, list.element);
}

export function lanes(main, { signal }) {
  const publishing = table({
    caption: 'A lane publishes the rows of one database to one broker. Latency, from storing to acknowledgement, as p50 and p99.',
    empty: 'There are no lanes, and no rows have been stored.',
    key: (l) => l.name,
    rowState: (l) => (l.error || (l.breaker && l.breaker !== 'closed') ? 'bad' : ''),
    columns: [
      { title: 'Lane', cell: (l) => l.name },
      counted('Waiting', 'pending'), counted('Processing', 'processing'), counted('Failed', 'failed'), counted('Abandoned', 'abandoned'), counted('Published', 'published'),
      { title: 'Per second', num: true, cell: (l) => rate(l.published_per_second) },
      { title: 'In flight', num: true, cell: (l) => count(l.in_flight) },
      { title: 'Latency', num: true, same: (l) => JSON.stringify(l.latency_seconds), cell: (l) => latency(l.latency_seconds) },
      { title: 'Oldest', num: true, cell: (l) => (l.counts && l.oldest_pending_seconds === null ? 'none' : age(l.oldest_pending_seconds)) },
      { title: 'Breaker', same: (l) => `${l.breaker} ${l.doing}`, cell: (l) => [l.breaker ? badge(l.breaker) : '–', slow(l)] },
      { title: 'Owners', same: (l) => JSON.stringify([l.lease_owners, l.members]), cell: (l) => [owners(l), sick(l)] },
      { title: 'Last error', same: (l) => `${l.error}\n${l.last_error}`, cell: (l) => [l.error && text(l.error), ' ', l.last_error && text(l.last_error), !l.error && !l.last_error && '–'] },
    ],
  });
  const consuming = table({
    caption: 'A subscription consumes the messages of a category. Rates and counts are of this process.',
    empty: 'No subscription runs in this process.',
    key: (s) => s.name,
    rowState: (s) => (s.running && !s.open ? '' : 'bad'),
    columns: [
      { title: 'Subscription', cell: (s) => s.name },
      { title: 'Database', cell: (s) => s.provider },
      { title: 'State', same: (s) => `${s.running} ${s.joined} ${s.since} ${s.paused} ${s.open}`, cell: (s) => (!s.joined ? [badge('stuck', 'not in its group'), s.since && [' since ', clock(s.since)]] : !s.running ? badge('stuck', 'not running') : s.paused ? badge('degraded', 'paused') : s.open ? badge('open', 'breaker open') : badge('closed', 'running')) },
      { title: 'Lag', num: true, cell: (s) => count(s.lag_messages) },
      { title: 'Lag', num: true, cell: (s) => age(s.lag_seconds) },
      { title: 'In flight', num: true, cell: (s) => count(s.in_flight) },
      { title: 'Handled', num: true, cell: (s) => count(s.handled) },
      { title: 'Duplicates', num: true, cell: (s) => count(s.duplicates) },
      { title: 'Retries', num: true, cell: (s) => count(s.retries) },
      { title: 'Missed', num: true, cell: (s) => count(s.missed) },
      { title: 'Parked', num: true, cell: (s) => count(s.parked) },
      { title: 'Dead letters', num: true, same: (s) => `${s.dead_letters}`, cell: (s) => (s.dead_letters > 0 ? h('a', { href: `#/dead-letters${query({ provider: s.provider, subscription: s.dead_letters_of })}` }, count(s.dead_letters)) : count(s.dead_letters)) },
      { title: 'Last error', same: (s) => `${s.refusal}\n${s.last_error}`, cell: (s) => (s.refusal || s.last_error ? text(s.refusal || s.last_error) : '–') },
    ],
  });
  main.append(h('h1', null, 'Lanes'), h('section', { 'aria-label': 'Lanes' }, publishing.element),
    h('section', { 'aria-label': 'Subscriptions' }, h('h2', null, 'Subscriptions'), consuming.element), gone(signal));
  const draw = () => {
    if (now.outbox) publishing.update(all());
    if (now.subscriptions) consuming.update(Object.entries(now.subscriptions).map(([name, s]) => ({ name, ...s })).sort((a, b) => (a.name < b.name ? -1 : 1)));
  };
  signal.addEventListener('abort', listen(draw));
  draw();
}

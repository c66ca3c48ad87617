// Commands: what became of them in this process, how long their handlers take, and how their queues are.
import { get } from '../api.js';
import { badge, h, problem, replace, table } from '../dom.js';
import { age, brief, count, query, short, when } from '../format.js';
import { listen, now } from '../live.js';

const readEvery = 2000;

// took is in half of the cases, and in 99 of 100.
const took = (t) => (t ? [brief(t.p50), h('br'), brief(t.p99)] : '–');
const seconds = (title, of) => ({ title, num: true, same: (c) => JSON.stringify(c[of]), cell: (c) => took(c[of]) });

const state = (s) => (!s.joined ? badge('stuck', 'not in its group') : !s.running ? badge('stuck', 'not running') : s.paused ? badge('degraded', 'paused') : s.open ? badge('open', 'breaker open') : badge('closed', 'running'));

const ago = (moment) => (moment ? age((Date.now() - new Date(moment)) / 1000) : '–');

export function commands(main, { signal }) {
  const failure = h('div');
  const ended = table({
    caption: 'Per type, in this process since its start, called directly or as messages. Handler time as p50 and p99.',
    empty: 'This process handles no commands. See this page on an engine that does.',
    key: (c) => `${c.context} ${c.command}`,
    rowState: (c) => (c.last_failed_at && Date.now() - new Date(c.last_failed_at) < 60000 ? 'bad' : ''),
    columns: [
      { title: 'Command', same: (c) => c.type, cell: (c) => [c.command, h('div', { class: 'quiet' }, c.context)] },
      { title: 'Done', num: true, cell: (c) => count(c.done) },
      { title: 'Refused', num: true, cell: (c) => count(c.refused) },
      { title: 'Failed', num: true, cell: (c) => count(c.failed) },
      { title: 'Expired', num: true, cell: (c) => count(c.expired) },
      { title: 'Stopped', num: true, cell: (c) => count(c.stopped) },
      seconds('Took, last minute', 'seconds_lately'),
      seconds('Took, since the start', 'seconds_ever'),
      { title: 'Last failure', same: (c) => `${c.last_failed_at} ${ago(c.last_failed_at)}`, cell: (c) => (c.last_error ? [h('span', { class: 'quiet' }, when(c.last_failed_at), `, ${ago(c.last_failed_at)} ago`), h('div', null, h('span', { class: 'error', title: c.last_error }, short(c.last_error)))] : '–') },
      { title: 'Find', same: (c) => `${c.type} ${c.subscription}`, cell: (c) => [h('a', { href: `#/messages${query({ type: c.type })}` }, 'messages'), c.subscription && [h('br'), h('a', { href: `#/dead-letters${query({ subscription: c.subscription, type: c.type })}` }, 'dead letters')], h('br'), h('a', { href: `#/waiting${query({ type: c.type })}` }, 'timers')] },
    ],
  });
  const queues = table({
    caption: 'A subscription handles the commands of its context that arrive as messages, including timers. One that fails is retried, then parked as a dead letter; later messages of its key wait until it is replayed or discarded.',
    empty: 'No commands arrive here as messages.',
    key: (s) => s.name,
    rowState: (s) => (s.running && !s.open && !s.dead_letters ? '' : 'bad'),
    columns: [
      { title: 'Subscription', cell: (s) => s.name },
      { title: 'State', same: (s) => `${s.joined} ${s.running} ${s.paused} ${s.open}`, cell: state },
      { title: 'Lag', num: true, cell: (s) => count(s.lag_messages) },
      { title: 'Lag', num: true, cell: (s) => age(s.lag_seconds) },
      { title: 'Waiting for a retry', num: true, cell: (s) => count(s.waiting) },
      { title: 'Dead letters', num: true, same: (s) => `${s.dead_letters}`, cell: (s) => (s.dead_letters > 0 ? h('a', { href: `#/dead-letters${query({ provider: s.provider, subscription: s.dead_letters_of })}` }, count(s.dead_letters)) : count(s.dead_letters)) },
      { title: 'Last error', same: (s) => `${s.refusal}\n${s.last_error}`, cell: (s) => (s.refusal || s.last_error ? h('span', { class: 'error', title: s.refusal || s.last_error }, short(s.refusal || s.last_error)) : '–') },
    ],
  });
  main.append(h('h1', null, 'Commands'), failure, ended.element,
    h('section', { 'aria-label': 'Queues' }, h('h2', null, 'Commands that arrive as messages'), queues.element));

  let all = [];
  const draw = () => {
    const subscriptions = [...new Set(all.map((c) => c.subscription).filter(Boolean))].sort();
    queues.update(subscriptions.filter((name) => now.subscriptions?.[name]).map((name) => ({ name, ...now.subscriptions[name] })));
  };
  async function load() {
    try {
      all = (await get('api/commands', signal)).commands;
      ended.update(all);
      draw();
      replace(failure);
    } catch (e) {
      if (!signal.aborted) replace(failure, problem(e));
    }
  }
  document.addEventListener('waybill:token', load, { signal });
  signal.addEventListener('abort', listen(draw));
  const timer = setInterval(load, readEvery);
  signal.addEventListener('abort', () => clearInterval(timer));
  load();
}

// One process: what it remembers, what it last heard, its timers and its dead letters.
import { fact, follow, payload } from '../detail.js';
import { badge, h, replace, table } from '../dom.js';
import { count, plural, query, short, when } from '../format.js';
import { messageLink } from './messages.js';
import { status } from './processes.js';

const words = {
  running: '',
  awaited: 'Messages arrived before the one that starts it, and wait among the dead letters.',
  ended: 'Later messages for it are ignored.',
};

export function processOf(main, { params, rest, signal }) {
  const [process, id] = rest;
  const content = h('div', { 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('p', { class: 'path' }, h('a', { href: '#/processes' }, 'Processes'), ' ›'), h('h1', { class: 'mono' }, id ?? ''), content);

  function draw(p) {
    const letters = query({ provider: p.provider, subscription: p.process, key: p.id });
    const heard = table({
      caption: 'The last 20 messages it handled, oldest first.', empty: 'It has handled no messages.', key: (m) => m.id,
      columns: [{ title: 'At', cell: (m) => when(m.at) }, { title: 'Type', cell: (m) => m.type }, { title: 'Message', cell: (m) => messageLink(m.id) }],
    });
    const timers = table({
      caption: 'Its timers, by due time.', empty: 'It has no timers.', key: (t) => t.id,
      columns: [
        { title: 'Name', cell: (t) => t.name }, { title: 'Status', cell: (t) => badge(t.status) }, { title: 'Due', cell: (t) => when(t.available_at) },
        { title: 'Set', cell: (t) => when(t.set_at) }, { title: 'Message', cell: (t) => (t.status === 'sent' ? messageLink(t.id) : h('span', { class: 'mono' }, t.id)) },
      ],
    });
    const dead = table({
      caption: 'Its messages that could not be handled, and those waiting behind them, in the order in which they were parked.', empty: 'It has no open dead letters.', key: (l) => l.id,
      columns: [
        { title: 'Status', cell: (l) => badge(l.status) }, { title: 'Reason', cell: (l) => l.reason }, { title: 'Type', cell: (l) => l.type || 'not known' },
        { title: 'Dead letter', cell: (l) => h('a', { class: 'mono', href: `#/dead-letters/${encodeURIComponent(l.id)}` }, l.id) },
        { title: 'Error', cell: (l) => h('span', { class: 'error', title: l.error }, short(l.error)) },
      ],
    });
    heard.update(p.heard);
    timers.update(p.timers);
    dead.update(p.dead_letters);
    const left = p.dead_letters_total - p.dead_letters.length;
    replace(content,
      h('p', { id: 'process-status' }, status(p), ' ', words[p.status]),
      h('dl', { class: 'facts' },
        fact('Process', p.process), fact('Database', p.provider), fact('Heard', plural(p.version, 'message')),
        fact(p.status === 'awaited' ? 'First message' : 'Began', when(p.began_at)), fact('Last heard', when(p.last_at)), fact('Ended', p.ended_at && when(p.ended_at))),
      h('h2', null, 'Timers'), timers.element,
      h('h2', null, 'Dead letters'), dead.element,
      p.dead_letters_total > 0 && h('p', null, h('a', { href: `#/dead-letters${letters}` }, left > 0 ? `All ${count(p.dead_letters_total)}` : 'Replay or discard them')),
      h('h2', null, 'Heard'), heard.element,
      h('h2', null, 'State'), p.status === 'awaited' ? h('p', { class: 'empty' }, 'It has no state before it starts.') : payload({ payload: p.state, payload_hidden: p.state_hidden }),
      p.status === 'running' && h('p', { class: 'quiet' }, 'To change it: ', h('code', null, 'waybill processes end'), ' ends it, and stops its timers; ', h('code', null, 'waybill processes wake'), ' fires a timer of it now.'));
  }

  follow(content, `api/processes/${encodeURIComponent(process)}/${encodeURIComponent(id ?? '')}${query({ provider: params.get('provider') })}`, signal, draw);
}

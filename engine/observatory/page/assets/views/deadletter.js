// One dead letter: what failed, why, its place in its key, and what it carried.
import { actionButton } from '../actions.js';
import { fact, follow, payload } from '../detail.js';
import { badge, h, replace } from '../dom.js';
import { count, found, needed, plural, query, when } from '../format.js';
import { messageLink } from './messages.js';
import { traceLink } from './trace.js';

export function deadLetter(main, { rest, signal }) {
  const [id] = rest;
  const content = h('div', { 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('p', { class: 'path' }, h('a', { href: '#/dead-letters' }, 'Dead letters'), ' ›'), h('h1', { class: 'mono' }, id), content);

  function draw(l) {
    const open = ['parked', 'held', 'waiting', 'early', 'replay'].includes(l.status);
    const target = [{ provider: l.provider, filter: { subscription: l.subscription, ids: [l.id] } }];
    replace(content,
      h('p', { id: 'letter-status' }, badge(l.status), ' ', l.status === 'held' && 'It follows by itself when the messages before it in its key are replayed or discarded.',
        l.status === 'replay' && 'The subscription handles it when its turn comes.'),
      h('dl', { class: 'facts' },
        fact('Message', l.message_id && [messageLink(l.message_id), ' · ', l.headers?.['correlation-id'] ? h('a', { href: `#/traces${query({ correlation: l.headers['correlation-id'] })}` }, 'trace') : traceLink(l.message_id, 'trace')]), fact('Type', l.type), fact('Subscription', l.subscription), fact('Database', l.provider),
        fact('Topic', l.topic), fact('Key', found(l.key, `#/dead-letters${query({ provider: l.provider, subscription: l.subscription, key: l.key })}`, l.key, Infinity)),
        fact('Reason', l.reason), fact('Needs', open && l.needs && `${needed(l.needs)}: the first one that runs handles it by itself`), fact('Attempts', count(l.attempts)), fact('First tried', when(l.first_at)), fact('Last tried', when(l.last_at)),
        fact('Replays', count(l.replays)), fact('Due', l.due_at && when(l.due_at)),
        fact('Earlier in its key', l.before > 0 && [`${plural(l.before, 'open one')}, the first `, h('a', { class: 'mono', href: `#/dead-letters/${encodeURIComponent(l.head)}` }, l.head)]),
        fact('Later in its key', l.behind > 0 && plural(l.behind, 'open one'))),
      h('div', { class: 'actions' }, ['parked', 'early'].includes(l.status) && actionButton('replay', target, load, { one: true }), open && actionButton('discard', target, load, { one: true })),
      h('h2', null, 'Error'), h('pre', { class: 'error', tabindex: '0' }, l.error, l.error_type && `\n(${l.error_type})`),
      l.stack && h('details', null, h('summary', null, 'Stack'), h('pre', { tabindex: '0' }, l.stack)),
      h('h2', null, 'Payload'),
      payload(l),
      l.headers && [h('h2', null, 'Headers'), h('dl', { class: 'facts' }, Object.entries(l.headers).sort().map(([name, value]) => fact(name, value || '(empty)')))]);
  }

  const load = follow(content, `api/dead-letters/${encodeURIComponent(id)}`, signal, draw);
}

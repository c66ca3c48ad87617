// One message's way: raised, a row per broker, attempts, published, consumed; and what it belongs to.
import { actionButton } from '../actions.js';
import { fact, follow, payload } from '../detail.js';
import { badge, h, replace } from '../dom.js';
import { count, found, query, when } from '../format.js';
import { messageLink, rowStatus } from './messages.js';
import { traceLink } from './trace.js';

const step = (state, title, ...content) => h('li', { class: 'step', 'data-state': state }, h('h3', null, title), content);

// tree is what has one correlation id, by cause. A message whose cause is not there is a root, and so is whatever
// is left: the ids are whatever somebody wrote.
function tree(related, current) {
  const known = new Map(related.map((m) => [m.message_id, m]));
  const children = Map.groupBy(related, (m) => (known.has(m.causation_id) && m.causation_id !== m.message_id ? m.causation_id : ''));
  const seen = new Set();
  const item = (m) => {
    if (seen.has(m.message_id)) return null;
    seen.add(m.message_id);
    const below = (children.get(m.message_id) ?? []).map(item).filter(Boolean);
    return h('li', null,
      h('div', { class: m.message_id === current ? 'node current' : 'node' },
        m.message_id === current ? h('strong', { 'aria-current': 'true' }, m.type) : messageLink(m.message_id, m.type),
        h('span', { class: 'quiet' }, ` ${m.stream} · `, when(m.occurred_at))),
      below.length > 0 && h('ul', null, below));
  };
  const roots = (children.get('') ?? []).map(item);
  return h('ul', { class: 'tree' }, roots, related.map(item));
}

function family(m) {
  if (!m.related) return h('p', { class: 'quiet' }, 'Searching for messages with this correlation id took too long. The link above searches again.');
  if (!m.related.length) return h('p', { class: 'quiet' }, 'No other message has this correlation id.');
  const self = { message_id: m.message_id, type: m.type, stream: m.stream, causation_id: m.causation_id, occurred_at: m.occurred_at };
  const all = [...m.related.filter((r) => r.message_id !== self.message_id), self].sort((a, b) => (a.occurred_at < b.occurred_at ? -1 : 1));
  return [h('p', { class: 'quiet' }, 'Messages with this correlation id, each below the one that caused it.'), tree(all, m.message_id)];
}

export function message(main, { rest, signal }) {
  const [id] = rest;
  const content = h('div', { 'aria-busy': 'true' }, h('p', { class: 'quiet' }, 'Reading…'));
  main.append(h('p', { class: 'path' }, h('a', { href: '#/messages' }, 'Messages'), ' ›'), h('h1', { class: 'mono' }, id), content);

  function draw(m) {
    const rows = m.rows ?? [];
    const row = (r) => step(r.status, [`To ${r.target}`, ' ', rowStatus(r)],
      h('dl', { class: 'facts' },
        fact('Database', r.provider),
        fact('Stored', when(r.created_at)),
        fact('Partition', `${r.partition}, key ${r.key}`),
        fact('Attempts', [`${count(r.attempts)} of ${count(r.max_attempts)}`, r.last_attempt_at && [', the last ', when(r.last_attempt_at)]]),
        r.status === 'failed' || r.status === 'pending' ? fact('Due', when(r.available_at)) : null,
        fact('Claimed by', r.locked_by && h('span', { class: 'mono' }, r.locked_by)),
        fact('Published', r.published_at && when(r.published_at)),
        fact('Failure', r.failure_class && badge('class', r.failure_class))),
      r.last_error && h('pre', { class: 'error', tabindex: '0' }, r.last_error),
      h('div', { class: 'actions' },
        ['failed', 'abandoned'].includes(r.status) && actionButton('retry', [{ provider: r.provider, filter: { seqs: [r.seq] } }], load, { one: true }),
        r.status === 'abandoned' && r.held && actionButton('skip', [{ provider: r.provider, filter: { seqs: [r.seq] } }], load, { one: true }),
        ['failed', 'pending'].includes(r.status) && actionButton('abandon', [{ provider: r.provider, filter: { seqs: [r.seq] } }], load, { one: true })));
    const consumed = (m.consumed ?? []).map((c) => step('published', `Handled by ${c.subscription}`, h('dl', { class: 'facts' }, fact('Database', c.provider), fact('Handled', when(c.at)))));
    const dead = (m.dead_letters ?? []).map((d) => step('abandoned', ['Dead letter of ', d.subscription, ' ', badge(d.status)],
      h('p', null, h('a', { href: `#/dead-letters/${encodeURIComponent(d.id)}` }, 'Show it'), h('span', { class: 'quiet' }, ` · ${d.reason}`)),
      d.error && h('pre', { class: 'error', tabindex: '0' }, d.error)));
    const open = content.querySelector('details')?.open ?? true;
    replace(content,
      h('h2', null, 'Path'),
      h('ol', { class: 'journey' },
        step('published', ['Raised: ', m.type],
          h('dl', { class: 'facts' },
            fact('Stream', found(m.stream, `#/messages${query({ stream: m.stream })}`, m.stream, Infinity)),
            fact('Occurred', when(m.occurred_at)),
            fact('Correlation', m.correlation_id && found(m.correlation_id, `#/messages${query({ correlation: m.correlation_id })}`, m.correlation_id, Infinity)),
            fact('Caused by', m.causation_id && messageLink(m.causation_id)))),
        rows.map(row), consumed, dead,
        !consumed.length && !dead.length && step('pending', 'Consumed', h('p', { class: 'quiet' }, 'No subscription with an inbox in these databases has handled it.'))),
      h('h2', null, 'Related messages'), m.correlation_id && h('p', null, traceLink(m.message_id, 'Draw the trace'), h('span', { class: 'quiet' }, ': these messages, and what became of each.')), family(m),
      h('details', { open }, h('summary', null, 'Payload'), payload(m)));
  }

  const load = follow(content, `api/outbox/messages/${encodeURIComponent(id)}`, signal, draw);
}

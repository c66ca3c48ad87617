// Partitions and processes: who owns what, and which partition does not move.
import { get } from '../api.js';
import { h, problem, replace, table } from '../dom.js';
import { age, count, plural, when } from '../format.js';

const readEvery = 3000;
const colours = 6;

export function partitions(main, { signal }) {
  const failure = h('div');
  const processes = table({
    caption: 'Processes that hold partitions.',
    empty: 'No process holds a partition: no engine runs for these databases.',
    key: (w) => w.name,
    columns: [
      { title: 'Process', cell: (w) => h('span', { class: 'mono' }, swatch(w.colour), w.name) },
      { title: 'Partitions', num: true, cell: (w) => count(w.partitions) },
      { title: 'Lanes', cell: (w) => [...w.lanes].sort().join(', ') },
      { title: 'Unfinished rows', num: true, cell: (w) => count(w.unfinished) },
      { title: 'Oldest', num: true, cell: (w) => (w.oldest === null ? 'none' : age(w.oldest)) },
      { title: 'Lease until', cell: (w) => when(w.until) },
    ],
  });
  const maps = h('div');
  const busy = table({
    caption: 'Partitions with unfinished rows, with their owner, if any.',
    empty: 'All partitions are empty.',
    key: (p) => `${p.lane} ${p.partition}`,
    rowState: (p) => (!p.live && p.unfinished > 0 ? 'bad' : ''),
    columns: [
      { title: 'Lane', cell: (p) => p.lane },
      { title: 'Partition', num: true, cell: (p) => count(p.partition) },
      { title: 'Owner', cell: (p) => h('span', { class: 'mono' }, p.live ? p.owner : p.owner ? `none (was ${p.owner})` : 'none') },
      { title: 'Member', num: true, cell: (p) => p.fence ?? '–' },
      { title: 'Lease until', cell: (p) => when(p.until) },
      { title: 'Unfinished rows', num: true, cell: (p) => count(p.unfinished) },
      { title: 'Oldest', num: true, cell: (p) => (p.oldest_seconds === null ? 'none' : age(p.oldest_seconds)) },
      { title: 'Held keys', num: true, cell: (p) => count(p.held) },
    ],
  });
  main.append(h('h1', null, 'Partitions and processes'), failure, h('section', { 'aria-label': 'Processes' }, h('h2', null, 'Processes'), processes.element),
    h('section', { 'aria-label': 'Map' }, h('h2', null, 'Who owns what'), maps), h('section', { 'aria-label': 'Partitions with rows' }, h('h2', null, 'Where rows wait'), busy.element));

  function swatch(i) {
    const s = h('span', { class: 'swatch', 'aria-hidden': 'true' });
    s.style.setProperty('--colour', i === null ? 'var(--line)' : `var(--series-${(i % colours) + 1})`);
    return s;
  }

  let drawn = '';
  function draw(all) {
    const lanes = Object.entries(all).flatMap(([provider, targets]) => Object.entries(targets ?? {}).map(([target, list]) => ({ name: `${provider} / ${target}`, list: list ?? [] }))).sort((a, b) => (a.name < b.name ? -1 : 1));
    const owners = [...new Set(lanes.flatMap((l) => l.list.filter((p) => p.live).map((p) => p.owner)))].sort();
    const summary = new Map(owners.map((name, colour) => [name, { name, colour, partitions: 0, lanes: new Set(), unfinished: 0, oldest: null, until: null }]));
    for (const lane of lanes) {
      for (const p of lane.list) {
        const w = p.live && summary.get(p.owner);
        if (!w) continue;
        w.partitions++;
        w.lanes.add(lane.name);
        w.unfinished += p.unfinished ?? 0;
        if (typeof p.oldest_seconds === 'number') w.oldest = Math.max(w.oldest ?? 0, p.oldest_seconds);
        if (!w.until || p.until < w.until) w.until = p.until;
      }
    }
    processes.update([...summary.values()]);
    busy.update(lanes.flatMap((l) => l.list.filter((p) => p.unfinished > 0 || p.held > 0).map((p) => ({ lane: l.name, ...p }))));
    const picture = JSON.stringify(lanes.map((l) => [l.name, l.list.map((p) => [p.partition, p.owner, p.live, p.unfinished, p.held])]));
    if (picture === drawn) return;
    drawn = picture;
    replace(maps, lanes.map((lane) => {
      const free = lane.list.filter((p) => !p.live).length;
      return h('figure', { class: 'map' },
        h('figcaption', null, lane.name, h('span', { class: 'quiet' }, ` · ${plural(lane.list.length, 'partition')}${free ? `, ${count(free)} without an owner` : ''}`)),
        h('div', { class: 'grid', role: 'img', 'aria-label': `${lane.name}: ${plural(lane.list.length - free, 'partition')} of ${count(lane.list.length)} have an owner` },
          lane.list.map((p) => {
            const cell = h('span', { class: 'cell', 'data-free': !p.live, 'data-rows': p.unfinished > 0, 'data-held': p.held > 0, title: `Partition ${p.partition}: ${p.live ? p.owner : 'nobody'}, ${plural(p.unfinished ?? 0, 'unfinished row')}${p.held > 0 ? `, ${plural(p.held, 'held key')}` : ''}` }, p.partition);
            if (p.live) cell.style.setProperty('--colour', `var(--series-${(summary.get(p.owner).colour % colours) + 1})`);
            return cell;
          })));
    }));
  }

  async function load() {
    try {
      const answer = await get('api/partitions', signal);
      draw(answer.providers ?? {});
      replace(failure, Object.entries(answer.errors ?? {}).map(([provider, text]) => h('p', { class: 'problem', role: 'alert' }, `${provider}: ${text}`)));
    } catch (e) {
      if (!signal.aborted) replace(failure, problem(e));
    }
  }
  document.addEventListener('waybill:token', load, { signal });
  const timer = setInterval(load, readEvery);
  signal.addEventListener('abort', () => clearInterval(timer));
  load();
}

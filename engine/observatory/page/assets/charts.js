// Lines over the last half hour, by lane.
import { h, replace } from './dom.js';
import { history } from './live.js';

const colours = 6;
// Steps of what is counted: no half rows.
const increments = Array.from({ length: 13 }, (_, i) => [1, 2, 5].map((n) => n * 10 ** i)).flat();
const dashes = [[], [6, 4], [2, 3]];

const two = (n) => String(n).padStart(2, '0');

// clocks are the times under a chart, with seconds where they are close.
const clocks = (_, values) => values.map((seconds) => {
  const t = new Date(seconds * 1000);
  const text = `${two(t.getHours())}:${two(t.getMinutes())}`;
  return values.length > 1 && values[1] - values[0] < 60 ? `${text}:${two(t.getSeconds())}` : text;
});

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = (i) => `--series-${(i % colours) + 1}`;

const drawn = new Set();

export const redrawCharts = () => { for (const chart of drawn) chart.redraw(); };

function swatch(i) {
  const s = h('span', { class: 'swatch', 'aria-hidden': 'true' });
  s.style.setProperty('--colour', `var(${colour(i)})`);
  return s;
}

// legend names the lanes by the colours of all charts.
export const legend = (names) => names.map((name, i) => h('li', null, swatch(i), name));

// chart draws one signal of all lanes until signal is aborted, and returns its element and what updates it.
export function chart({ signal: name, title, format, whole }, ended) {
  const place = h('div', { class: 'plot', role: 'img', 'aria-label': title });
  const now = h('span', { class: 'now' });
  const element = h('figure', { class: 'chart' }, h('figcaption', null, title, ' ', now), place);
  let plot = null;
  let names = [];

  const axis = { stroke: () => css('--quiet'), grid: { stroke: () => css('--line'), width: 1 }, ticks: { show: false }, font: '11px system-ui, sans-serif' };
  const make = () => {
    plot?.destroy();
    drawn.delete(plot);
    plot = new uPlot({ // eslint-disable-line no-undef
      width: Math.max(place.clientWidth, 200), height: 130,
      legend: { show: false },
      cursor: { sync: { key: 'waybill' }, points: { size: 6 }, drag: { x: false, y: false } },
      // The first sample alone has no width, and every tick its time.
      scales: { x: { range: (_, min, max) => [Math.min(min, max - 60), max] }, y: { range: (_, __, max) => [0, Math.max(max * 1.1, 1)] } },
      axes: [{ ...axis, size: 26, space: 80, values: clocks }, { ...axis, size: 54, space: 28, incrs: whole && increments, values: (_, values) => values.map((v) => (v === 0 ? '0' : format(v))) }],
      series: [
        {},
        ...names.map((lane, i) => ({ label: lane, stroke: () => css(colour(i)), width: 1.75, dash: dashes[Math.floor(i / colours) % dashes.length], points: { show: false }, spanGaps: false })),
      ],
      hooks: { setCursor: [say] },
    }, data(), place);
    drawn.add(plot);
  };
  const data = () => [history.times, ...names.map((lane) => history.lanes.get(lane)[name])];

  // say shows the values under the pointer, or the last ones.
  const say = (u) => {
    const at = u.cursor.idx ?? history.times.length - 1;
    replace(now, names.map((lane, i) => {
      const value = history.lanes.get(lane)?.[name][at];
      return h('span', { title: lane }, swatch(i), typeof value === 'number' ? format(value) : '–');
    }));
  };

  const update = () => {
    const current = [...history.lanes.keys()].sort();
    if (!history.times.length || !place.isConnected) return;
    if (!plot || current.join('\n') !== names.join('\n')) {
      names = current;
      make();
    } else {
      plot.setData(data());
    }
    say(plot);
    place.setAttribute('aria-label', `${title}, last half hour. Now: ${names.map((lane) => `${lane} ${format(history.lanes.get(lane)[name].at(-1) ?? 0)}`).join(', ')}`);
  };

  const resized = new ResizeObserver(() => plot?.setSize({ width: Math.max(place.clientWidth, 200), height: 130 }));
  resized.observe(place);
  ended.addEventListener('abort', () => {
    resized.disconnect();
    drawn.delete(plot);
    plot?.destroy();
  });
  return { element, update };
}
